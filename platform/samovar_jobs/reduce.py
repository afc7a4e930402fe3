"""The input of a job that reduces a group: `{"results": [...]}`, all its results in the order of the inputs.

This module does not know what is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from samovar.errors import BadOutput
from samovar_storage.jobs.records import GroupRecord

PAGE = 200


class Groups(Protocol):
    """What of the store is needed here, see `samovar_storage.jobs.redis_jobs.RedisJobs`."""

    async def group(self, group_id: str) -> GroupRecord: ...
    async def group_results(self, group_id: str, offset: int, limit: int, max_bytes: int) -> list[bytes | None]: ...


async def reduce_input(store: Groups, group_id: str, max_bytes: int) -> bytes:
    """Return `{"results": [...]}` with all results of a group, null for what did not finish.

    Raises: BadOutput if a result is no JSON, or all together are more than `max_bytes`. JobNotFound for a group that is
    forgotten; StoreUnavailable.
    """
    number = (await store.group(group_id)).num_jobs
    parts: list[bytes] = []
    size = 2
    for offset in range(0, number, PAGE):
        page = checked(await store.group_results(group_id, offset, PAGE, max(0, max_bytes - size)), offset)
        parts += page
        size += sum(map(len, page)) + len(page)
        if size > max_bytes:
            raise BadOutput(f"the results to be reduced have more than {max_bytes} bytes together (job_result_bytes)")
    return b'{"results":[' + b",".join(parts) + b"]}"


def checked(results: Sequence[bytes | None], offset: int) -> list[bytes]:
    """Return the results as JSON. offset: index of the first in its group. Raises: BadOutput naming the index."""
    parts: list[bytes] = []
    for index, result in enumerate(results, offset):
        part = b"null" if result is None else result
        try:
            msgspec.json.decode(part)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            detail = f"the result of the group's job number {index} is no JSON document, and only JSON can be reduced"
            raise BadOutput(detail, index=index) from error
        parts.append(part)
    return parts
