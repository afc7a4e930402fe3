"""Recent answers in this process, under a cap of entries and of bytes: the least recently used goes first.

With Redis away, or in a hurry, this is what there is. This module does not know Redis, clocks or who asks.
"""

from __future__ import annotations

from collections import OrderedDict

from samovar_storage.answers import Answer

OVERHEAD_BYTES = 400  # what an entry costs beside its body: key, struct, links


class Shelf:
    """num_bytes: what the entries take, bodies and overhead."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> Answer | None:
        """Return what is kept under `key`; it is now the most recently used."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: str, answer: Answer) -> None:
        """Keep `answer` instead of what was there; the least recently used leave until the caps hold."""
        self.drop(key)
        self._answers[key] = answer
        self.num_bytes += _size(answer)
        while self.num_bytes > self._max_bytes or len(self._answers) > self._max_entries:
            self.num_bytes -= _size(self._answers.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        """Keep nothing under `key`. Idempotent."""
        old = self._answers.pop(key, None)
        if old is not None:
            self.num_bytes -= _size(old)

    def drop_function(self, name: str) -> None:
        """Keep no answer of a function."""
        for key in [key for key in self._answers if key.startswith(f"{name}:")]:
            self.drop(key)


def _size(answer: Answer) -> int:
    return len(answer.body) + OVERHEAD_BYTES
