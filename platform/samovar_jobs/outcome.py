"""From what the dispatcher says of a call to what `verdict.py` decides on. Results are gathered within bounds.

This module does not know Redis, or what becomes of the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from samovar.errors import BadOutput, Cancelled, SamovarError
from samovar.wire import Result
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.stream import ChunkStream
from samovar_jobs.verdict import Ended

NDJSON = "application/x-ndjson"
STOP_POLL_S = 0.02


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
            body, kind = within(outcome.body, max_bytes), outcome.content_type
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
        within(lines, max_bytes)
    return bytes(lines)


def within(body: bytes, max_bytes: int) -> bytes:
    """Return `body`. Raises BadOutput if it has more than `max_bytes`."""
    if len(body) > max_bytes:
        raise BadOutput(f"the result has more than the {max_bytes} bytes that a job's may have (job_result_bytes)")
    return body


def was_run(call: Call) -> bool:
    """Return whether an instance had the call when it ended, so that its error is the handler's own."""
    return call.seat is not None or call.stream is not None


async def has_stopped(call: Call) -> bool:
    """Return once the instance really ended the call; False if it had to end itself for that."""
    seat = call.seat
    if seat is None:
        return True
    connection = seat.owner
    while connection.in_flight.get(call.id) is call:
        if connection.closed.done():
            return False
        await asyncio.sleep(STOP_POLL_S)
    return not connection.closed.done()
