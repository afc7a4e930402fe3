"""A generator whose items are tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import samovar as sv


class Step(TypedDict):
    number: int
    word: str


@sv.function
def countdown_tensors(n: int, fail_at: int = -1) -> Iterator[Step]:
    for number in range(n, 0, -1):
        if number == fail_at:
            raise ValueError("it is spilt")
        yield {"number": number, "word": "tea" * number}
