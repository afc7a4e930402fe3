"""Embeddings of texts or of token ids, without a model, and without saying how many tokens there were."""

import samovar as sv
from samovar.tasks.embedding import Embedding


@sv.function(task="embeddings")
def measures_tokens(text: str | list[int]) -> Embedding:
    return {"embedding": [float(len(text)), 1.0 if isinstance(text, str) else 2.0]}
