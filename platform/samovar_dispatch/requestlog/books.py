"""What is pending of one version: its rows, and its traffic in the making.

Filled on the calls' path, so it only collects and packs; whoever takes it counts. This module does not know who does
either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from samovar_dispatch.ask import CACHED, FALLBACK, SHADOW
from samovar_dispatch.requestlog.policy import PayloadPolicy
from samovar_storage.requestlog.rows import Row, encode_frame
from samovar_storage.traffic import NUM_BUCKETS, Tally, bounds_s, outcome_of

_EDGES_S = [bounds_s(bucket)[0] for bucket in range(1, NUM_BUCKETS)]
PACKED_ROWS = 50
PACKED_BYTES = 128 << 10
MAX_PACKED_BYTES = 1 << 20  # copying more would be felt: then the writer's thread packs
_NOT_ANSWERED_BY_IT = FALLBACK | CACHED


class Book:
    """Of one version, or, with ref None, of a function's invocations that no version got.

    totals_s, runs_us: of calls with an answer. rows: as they ended; untreated: those whose payloads `policy` still has
    to treat. packed: frames of older rows, each with its number of rows. number: the version's.
    """

    __slots__ = (
        "_counts",
        "_row_bytes",
        "_shadow",
        "function",
        "number",
        "packed",
        "policy",
        "ref",
        "rows",
        "runs_us",
        "totals_s",
        "untreated",
    )

    def __init__(self, function: str, ref: str | None, number: int, policy: PayloadPolicy) -> None:
        self.function = function
        self.ref = ref
        self.number = number
        self.policy = policy
        self.rows: list[Row] = []
        self.untreated: list[Row] = []
        self.packed: list[tuple[bytes, int]] = []
        self._row_bytes = 0
        self.totals_s: list[float] = []
        self.runs_us: list[int] = []
        self._counts: Counter[str] = Counter()
        self._shadow: Book | None = None

    def add(self, row: Row, num_bytes: int, run: str) -> None:
        """Take a row in; those before it are packed when they are many or hold many bytes (unless one is untreated, or
        they hold too many).

        Packed at once and not later, so that the memory of rows is used again while it is still in the cache: of a
        thousand rows that wait, each costs the calls several times what packing it does.
        """
        rows = self.rows
        self._row_bytes += num_bytes
        if len(rows) >= PACKED_ROWS or self._row_bytes >= PACKED_BYTES:
            if rows and not self.untreated and self._row_bytes <= MAX_PACKED_BYTES:
                self.packed.append((encode_frame(run, self.function, rows), len(rows)))
                self.rows = rows = []
                self._row_bytes = num_bytes
        rows.append(row)

    @property
    def num_rows(self) -> int:
        """Rows that are pending, packed or not."""
        return len(self.rows) + sum(num_rows for _, num_rows in self.packed)

    def count(self, status: int, marks: int, total_s: float, run_us: int = 0) -> None:
        """Count a call that ended otherwise than with a plain answer of this version."""
        if marks & SHADOW:
            if self._shadow is None:
                self._shadow = Book(self.function, self.ref, self.number, self.policy)
            self._shadow.count(status, marks & ~SHADOW, total_s, run_us)
        elif marks & _NOT_ANSWERED_BY_IT:
            self._counts["fallback" if marks & FALLBACK else "cached"] += 1
        elif status == 200:
            self.totals_s.append(total_s)
            self.runs_us.append(run_us)
        else:
            self._counts[outcome_of(status)] += 1

    def unmark(self, marks: int) -> None:
        """The answer counted last had marks: count it as these say."""
        if marks & (SHADOW | _NOT_ANSWERED_BY_IT):
            self.count(200, marks, self.totals_s.pop(), self.runs_us.pop())

    def tallies(self) -> tuple[Tally, Tally]:
        """Return the traffic of calls and that of shadow copies."""
        return self._tally(), self._shadow._tally() if self._shadow is not None else Tally()

    def _tally(self) -> Tally:
        return Tally(
            ok=len(self.totals_s),
            total=Counter([bisect_right(_EDGES_S, total_s) for total_s in self.totals_s]),
            run=Counter([bisect_right(_EDGES_S, run_us * 1e-6) for run_us in self.runs_us]),
            **self._counts,
        )
