"""What functions of the task `embeddings` take and give. This module does not know models or HTTP.

A function that takes a text under another name, such as `def embed(sentence: str)`, is one, too: what counts is that a
client sends one text and gets an object with `embedding`.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Embedding(TypedDict):
    """The answer to one text. embedding: numbers, all of them finite. num_tokens: what the text came to."""

    embedding: list[float]
    num_tokens: NotRequired[int]
