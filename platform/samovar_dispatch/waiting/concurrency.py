"""How many calls an async instance works on at once, for functions that do not say.

The default number of slots of an async handler is a guess: right for one that awaits, too much for one that computes,
where each further call only slows its mates and waits where it can be neither shed nor given to another instance. So
the limit follows the gradient of the run time against that of calls that ran alone: as long as company costs nothing
it grows to the instance's slots, and it shrinks while company makes calls slower. It never exceeds the slots, and a
function that declares `target_concurrency`, or batches, is left as declared.

Source: Netflix concurrency-limits, Gradient2; ours takes calls that ran alone as the baseline, since a long average of
a server that is always full forgets what "alone" was. This module does not know calls, instances or clocks.
"""

from __future__ import annotations

from math import sqrt

from samovar.spec import Manifest

SMOOTHING = 0.2
TOLERANCE = 1.5
MIN_GRADIENT = 0.5
BASE_WEIGHT = 0.1
PROBE_EVERY = 500


def is_adaptive(manifest: Manifest) -> bool:
    """Return whether this version's concurrency is a guess."""
    is_async = manifest.handler in ("async", "async_generator")
    return is_async and manifest.batch is None and manifest.scaling.target_concurrency is None


class GradientLimit:
    """The limit of one instance. slots: its upper bound, >= 1. limit: the present one, within [1, slots]."""

    __slots__ = ("_base_s", "_estimate", "_num_since_alone", "_run_s", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._estimate = float(slots)
        self._base_s = self._run_s = 0.0
        self._num_since_alone = 0

    @property
    def limit(self) -> int:
        """How many calls it may hold now; 1 while it is time to see again how fast a call is alone."""
        return 1 if self._num_since_alone >= PROBE_EVERY else max(1, int(self._estimate))

    def ended(self, run_s: float, *, was_alone: bool, is_full: bool) -> int:
        """Take one run time in; return the limit.

        Args:
            run_s: seconds, > 0. was_alone: no other call was there while it ran.
            is_full: as many calls as the limit allows were there; else the limit is not what they were slowed by.
        """
        if was_alone:
            self._base_s = run_s if self._base_s == 0.0 else self._base_s + BASE_WEIGHT * (run_s - self._base_s)
            self._num_since_alone = 0
            return self.limit
        self._num_since_alone += 1
        self._run_s = run_s if self._run_s == 0.0 else self._run_s + BASE_WEIGHT * (run_s - self._run_s)
        if self._base_s and is_full:
            gradient = max(MIN_GRADIENT, min(1.0, TOLERANCE * self._base_s / self._run_s))
            wanted = self._estimate * gradient + sqrt(self._estimate)
            self._estimate += SMOOTHING * (wanted - self._estimate)
            self._estimate = min(max(self._estimate, 1.0), float(self.slots))
        return self.limit
