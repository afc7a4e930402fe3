"""A worker that is killed between the POST and the record of it: the event comes again, under the same id."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis.asyncio as redis_async

from samovar_storage.jobs.webhooks import Webhooks
from samovar_storage.objects import ObjectStore
from support.gateway import environment
from support.hooks import KEY, end
from support.processes import running
from support.receiver import receiving
from support.waiting import wait_until, wait_until_async

WORKER = Path(__file__).parents[1] / "support" / "webhook_worker.py"

pytestmark = pytest.mark.process


async def test_a_killed_workers_event_comes_again(
    aredis: redis_async.Redis, object_store: ObjectStore, settings_file: Callable[..., Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-P", str(WORKER), str(settings_file())]
    with receiving() as receiver:
        await end(aredis, "a", f"{receiver.url}/hang")
        with running(command, tmp_path / "first.log", environment()) as first:
            await wait_until_async(lambda: receiver.seen)
            first.send_signal(signal.SIGKILL)
            wait_until(lambda: first.poll() is not None)
        receiver.hang.set()
        with running(command, tmp_path / "second.log", environment()):
            await wait_until_async(lambda: len(receiver.seen) == 2)
            await wait_until_async(lambda: _is_empty(Webhooks(aredis)))
        assert receiver.ids() == ["a.finished", "a.finished"]


async def _is_empty(events: Webhooks) -> bool:
    return not await events.open(KEY, 10)
