"""From what the dispatcher says of a call to what `verdict.py` decides on. Results are gathered within bounds.

This module does not know Redis, or what becomes of the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from samovar.errors import BadOutput, Cancelled, SamovarError
from samovar.wire import Result
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.stream import ChunkStream
from samovar_jobs.verdict import Ended

NDJSON = "application/x-ndjson"


async def ended_of(call: Call, outcome: Outcome, max_bytes: int, hear: Callable[[bytes], object]) -> Ended:
    """Return what an attempt ended in, once it has.

    Args:
        max_bytes: larger results are a failure of the handler.
        hear: told each item of a stream.
    """
    try:
        if isinstance(outcome, ChunkStream):
            body, kind = await gather(outcome, max_bytes, hear), NDJSON
        elif isinstance(outcome, Result):
            check_size(len(outcome.body), max_bytes)
            body, kind = outcome.body, outcome.content_type
        else:
            raise outcome
    except SamovarError as error:
        return Ended(error, was_run(call), call.num_attempts, version=call.version.manifest.version)
    except Cancelled:
        return Ended(canceled=True, lost_runs=call.num_attempts, version=call.version.manifest.version)
    version = call.version.manifest.version
    return Ended(lost_runs=call.num_attempts, result=body, result_type=kind, version=version)


async def gather(stream: ChunkStream, max_bytes: int, hear: Callable[[bytes], object]) -> bytes:
    """Return all items of a stream, one a line. Raises BadOutput if they are too many bytes, and what it fails with."""
    lines = bytearray()
    async for item in stream:
        hear(item)
        lines += item
        lines += b"\n"
        check_size(len(lines), max_bytes)
    return bytes(lines)


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Raise BadOutput if a result is larger than `max_bytes`."""
    if num_bytes > max_bytes:
        raise BadOutput(f"the result has more than the {max_bytes} bytes that a job's may have (job_result_bytes)")


def was_run(call: Call) -> bool:
    """Return whether an instance had the call when it ended, so that its error is the handler's own."""
    return call.seat is not None or call.stream is not None


async def stopped(call: Call) -> bool:
    """Return once no instance holds the call any more; False if one had to end for that, or was lost."""
    freed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def then(with_instance: bool) -> None:
        if not freed.done():
            freed.set_result(not with_instance)

    call.when_freed(then)
    return await freed


def stop_note(*, ran: bool, was_ended: bool) -> dict[str, Any]:
    """Return the problem document of a job that was cancelled: whether it ran, and how it stopped.

    was_ended: its instance had to end for it.
    """
    if not ran:
        detail = "the job was cancelled before it ran"
    elif was_ended:
        detail = "the job was cancelled while it ran; it did not stop by itself, so its instance was replaced"
    else:
        detail = "the job was cancelled while it ran, and stopped by itself"
    return {"code": "cancelled", "status": 499, "title": "Cancelled", "detail": detail, "instance_ended": was_ended}
