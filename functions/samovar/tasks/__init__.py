"""What a function is for, in words that protocols understand: `@sv.function(task="text-generation")`.

    text-generation   takes a GenerationInput, yields GenerationOutputs      /v1/chat/completions, /v1/completions
    image-text-to-text, any-to-any      the same, and sees pictures; hears, too
    embeddings        takes one text, returns {"embedding": [numbers]}       /v1/embeddings
    any other name    says to people what it does; a pipeline of transformers of that name has its types

Every function keeps its native route, and the Open Inference Protocol as far as its types are tensors. A task is
checked at deploy: a function that declares one can be called by its protocols. This module does not know protocols.
"""

from __future__ import annotations

from collections.abc import Mapping

TEXT_GENERATION = "text-generation"
IMAGE_TEXT_TO_TEXT = "image-text-to-text"
ANY_TO_ANY = "any-to-any"
EMBEDDINGS = "embeddings"

# tasks that generate text, and the types of parts that their messages may have
PARTS: Mapping[str, frozenset[str]] = {
    TEXT_GENERATION: frozenset(("text",)),
    IMAGE_TEXT_TO_TEXT: frozenset(("text", "image")),
    ANY_TO_ANY: frozenset(("text", "image", "audio")),
}
