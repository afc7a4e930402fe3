"""A stream: what a generator yields reaches the client item by item, one JSON line each."""

import time
from collections.abc import Iterator
from typing import TypedDict

import samovar as sv


class Tick(TypedDict):
    left: int
    word: str


@sv.function(name="countdown", example={"text": "tea", "pause_s": 0.0})
def countdown(text: str, pause_s: float = 0.2) -> Iterator[Tick]:
    """Yield the words of `text`, one every `pause_s` seconds."""
    words = text.split()
    for index, word in enumerate(words):
        yield {"left": len(words) - index - 1, "word": word}
        time.sleep(pause_s)
