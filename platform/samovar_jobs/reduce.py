"""The input of a job that reduces a group: the list of all its results, in the order of the inputs, as JSON.

This module does not know what is done with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from samovar.errors import BadOutput
from samovar.jobs import JobState
from samovar_storage.jobs.records import JobRecord, JobSpec

if TYPE_CHECKING:
    from samovar_storage.jobs.redis_jobs import RedisJobs

JSON = "application/json"
PAGE = 500


async def reduce_input(store: RedisJobs, spec: JobSpec, max_bytes: int) -> bytes:
    """Return the JSON list of all results of the group `spec.reduce_of`, null for what did not finish.

    Raises: BadOutput if a result is no JSON, or all together are more than `max_bytes`. StoreUnavailable.
    """
    records = await members(store, spec)
    results = [await store.result(record) if record.state is JobState.FINISHED else None for record in records]
    return joined(((record, result) for record, result in zip(records, results, strict=True)), max_bytes)


async def members(store: RedisJobs, spec: JobSpec) -> list[JobRecord]:
    """Return the jobs of the group, in the order of the inputs. Raises: StoreUnavailable."""
    found: list[JobRecord] = []
    cursor = ""
    while True:
        page = await store.list([spec.function], None, None, spec.reduce_of, cursor, PAGE)
        found += [record for record in page.jobs if not record.spec.reduce_of]
        cursor = page.cursor
        if not cursor:
            return sorted(found, key=lambda record: record.spec.index)


def joined(results: Iterable[tuple[JobRecord, bytes | None]], max_bytes: int) -> bytes:
    """Return the results as one JSON list. Raises: BadOutput."""
    parts: list[bytes] = []
    size = 2
    for record, result in results:
        part = b"null" if result is None else checked(record, result)
        size += len(part) + 1
        if size > max_bytes:
            raise BadOutput(f"the results to be reduced have more than {max_bytes} bytes together (job_result_bytes)")
        parts.append(part)
    return b"[" + b",".join(parts) + b"]"


def checked(record: JobRecord, result: bytes) -> bytes:
    """Return a result that is JSON. Raises: BadOutput naming the job otherwise."""
    if record.result_type == JSON:
        try:
            msgspec.json.decode(result)
        except msgspec.DecodeError:
            pass
        else:
            return result
    detail = f"the result of job {record.id} is {record.result_type or 'nothing'}, and only JSON can be reduced"
    raise BadOutput(detail, job=record.id)
