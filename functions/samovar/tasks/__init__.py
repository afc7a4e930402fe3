"""What a function is for, in words that protocols understand: `@sv.function(task="text-generation")`.

    text-generation   takes a GenerationInput, yields GenerationOutputs      /v1/chat/completions, /v1/completions
    embeddings        takes one text, returns {"embedding": [numbers]}       /v1/embeddings
    any other name    says to people what it does; a pipeline of transformers of that name has its types

Every function keeps its native route, and the Open Inference Protocol as far as its types are tensors. A task is
checked at deploy: a function that declares one can be called by its protocols. This module does not know protocols.
"""

from __future__ import annotations

TEXT_GENERATION = "text-generation"
EMBEDDINGS = "embeddings"
