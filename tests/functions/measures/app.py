"""Embeddings without a model: how long a text is, how many words and how many vowels it has."""

import samovar as sv
from samovar.tasks.embedding import Embedding
from samovar.tasks.generation import CONTEXT_EXCEEDED, refusal


@sv.function(task="embeddings", batch=sv.Batch(max_size=16, max_wait_ms=20), example={"text": "tea"})
def measures(text: list[str]) -> list[Embedding]:
    print(f"batch of {len(text)}", flush=True)
    return [embed(one) for one in text]


def embed(text: str) -> Embedding:
    if "!fail" in text:
        raise ValueError("cannot be measured")
    if "!long" in text:
        raise refusal("text", "it goes on and on", reason=CONTEXT_EXCEEDED)
    numbers = [float(len(text)), float(len(text.split())), float(sum(letter in "aeiou" for letter in text)), 0.1]
    return {"embedding": numbers, "num_tokens": len(text.split())}
