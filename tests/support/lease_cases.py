"""Cases of a lease that the Python and the Lua must answer alike.

Each: rate (calls a second), burst, backlog before (s), charge, want → granted, backlog after (s). All are half a call
away from where the answer changes, so that the milliseconds between two looks at the server's clock do not matter.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    rate_per_s: float
    burst: int
    backlog_s: float
    charge: float
    want: int
    granted: int
    after_s: float


CASES = {
    "an unused limit grants what is wanted": Case(10, 40, 0, 0, 5, 5, 0.5),
    "and no more than its burst": Case(10, 40, 0, 0, 100, 40, 4.0),
    "what is charged is not there any more": Case(10, 40, 0, 35, 100, 5, 4.0),
    "only whole calls are granted": Case(10, 40, 3.45, 0, 100, 5, 3.95),
    "a backlog flows off by itself": Case(10, 40, 2.0, 0, 0, 0, 2.0),
    "a spent limit grants nothing": Case(10, 40, 4.0, 0, 1, 0, 4.0),
    "a charge goes beyond the burst": Case(10, 40, 4.0, 10, 1, 0, 5.0),
    "from debt there is nothing": Case(10, 40, 6.0, 0, 10, 0, 6.0),
    "lease given back can be had by others": Case(10, 40, 4.0, -10, 7, 7, 3.7),
    "more than was taken cannot be given back": Case(10, 40, 0.5, -10, 0, 0, 0.0),
    "a slow limit": Case(1 / 60, 1, 0, 0, 1, 1, 60.0),
    "a slow limit, spent": Case(1 / 60, 1, 30.0, 0, 1, 0, 30.0),
    "a fast one": Case(5000, 5000, 0, 0, 500, 500, 0.1),
    "fractions are charged": Case(10, 40, 1.0, 0.5, 0, 0, 1.05),
    "nothing asked, nothing changed": Case(10, 40, 0, 0, 0, 0, 0.0),
}
