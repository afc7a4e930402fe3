"""The threads of the admin side: bounded, and a caller who leaves stops nothing that began."""

import asyncio
import threading

import pytest

from samovar.errors import Unavailable
from samovar_gateway.admin.workers import Workers


async def test_a_full_line_is_refused_at_once_and_drains() -> None:
    workers, gate = Workers("test", num_threads=1, max_waiting=1), threading.Event()
    try:
        calls = [asyncio.create_task(workers.run(gate.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as refused:
            await workers.run(int)
        assert refused.value.retry_after_s is not None
        gate.set()
        assert await asyncio.gather(*calls) == [True, True]
        assert await workers.run(int, "7") == 7
    finally:
        gate.set()
        workers.close()


async def test_a_caller_who_leaves_does_not_undo_what_began() -> None:
    workers, gate, done = Workers("test", num_threads=1, max_waiting=1), threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(10)
        done.set()

    try:
        call = asyncio.create_task(workers.run(work))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.set()
        assert await asyncio.to_thread(done.wait, 10)
    finally:
        workers.close()


async def test_errors_arrive() -> None:
    workers = Workers("test", num_threads=1, max_waiting=1)
    try:
        with pytest.raises(ValueError, match="invalid literal"):
            await workers.run(int, "tea")
    finally:
        workers.close()
