"""Accepting jobs: in steps of a bounded size, each all or nothing.

This module does not know what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from samovar.errors import JobNotFound, NotUnique

MAX_BATCH = 100
MAX_BATCH_BYTES = 2 * 1024 * 1024

Packed = list[bytes]


def steps(packed: Sequence[Packed]) -> list[list[Packed]]:
    """Return the jobs in steps of at most MAX_BATCH jobs and, but for single ones, MAX_BATCH_BYTES."""
    found: list[list[Packed]] = []
    size = 0
    for job in packed:
        num_bytes = sum(map(len, job))
        size += num_bytes
        if not found or len(found[-1]) >= MAX_BATCH or size > MAX_BATCH_BYTES:
            found.append([])
            size = num_bytes
        found[-1].append(job)
    return found


def flat(packed: Sequence[Packed]) -> list[bytes]:
    """Return the arguments of a script that is given all of these."""
    return [part for parts in packed for part in parts]


def accepted(reply: Sequence[bytes]) -> list[str]:
    """Return the ids of the jobs that a step has newly accepted. Raises: NotUnique; JobNotFound."""
    outcome, *ids = (part.decode() for part in reply)
    if outcome == "not_unique":
        raise NotUnique(f"the unfinished job {ids[0]} has this `unique`", job=ids[0])
    if outcome == "unknown":
        raise JobNotFound(f"there is no job {ids[0]} to depend on", job=ids[0])
    return ids
