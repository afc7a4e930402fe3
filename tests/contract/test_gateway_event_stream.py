"""One stream of a job's events, spoken to as a server does: it lives while nothing happens, waits for who reads slowly,
and goes with its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis.asyncio as redis_async

from samovar.jobs import JobState
from samovar_gateway.jobs.events import HEARTBEAT, EventStream
from samovar_gateway.jobs.watch import WatchHub
from samovar_gateway.state import GatewayState
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.events import append_events, log_event
from samovar_storage.jobs.layout import QueueName, new_job_id
from samovar_storage.jobs.records import JobSpec, NewJob, Settlement, Taken
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.story import START
from samovar_storage.objects import ObjectStore
from support.waiting import wait_until_async

FINISHED = Settlement(state=JobState.FINISHED, result=b"1", result_type="application/json")


class Client:
    """Whoever is at the other end. reads: cleared = it does not read for now."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_whole = False
        self.reads = asyncio.Event()
        self.reads.set()
        self._left = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self.reads.wait()
            self.sent.append(message["body"])
            self.is_whole = not message["more_body"]

    async def receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._left.set()

    def num(self, kind: str) -> int:
        return b"".join(self.sent).count(b"event: %s\n" % kind.encode())


class Room:
    """A gateway's part that streams events, over this test's stores, and a job that runs."""

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore) -> None:
        self.redis = redis
        self.jobs = RedisJobs(redis, objects)
        self.watches = WatchHub(redis, self.jobs)

    async def run_job(self) -> Taken:
        spec = JobSpec(function="embed", key_id="k1", created_at_s=time.time())
        await self.jobs.submit([NewJob(id=new_job_id(int(spec.created_at_s * 1000)), spec=spec, input=b"{}")])
        await self.jobs.beat("w1")
        (taken,) = await self.jobs.take(QueueName("embed", "k1"), "w1", 1)
        return taken

    def stream(self, taken: Taken, client: Client, heartbeat_s: float = 15.0) -> asyncio.Task[None]:
        state = SimpleNamespace(redis=self.redis, jobs=self.jobs, watches=self.watches)
        stream = EventStream(cast(GatewayState, state), taken.id, START, heartbeat_s)
        return asyncio.create_task(stream(cast(Any, {}), client.receive, cast(Any, client.send)))

    async def say(self, taken: Taken, count: int) -> None:
        for _ in range(count // 100):
            assert await append_events(self.redis, taken.id, taken.token, [log_event("x", 1.0)] * 100) == 100

    async def num_reads(self) -> int:
        stats = await self.redis.info("commandstats")
        return int(stats.get("cmdstat_xrange", {}).get("calls", 0))


@pytest.fixture
async def room(aredis: redis_async.Redis, object_store: ObjectStore) -> AsyncIterator[Room]:
    room = Room(aredis, object_store)
    hearing = asyncio.ensure_future(room.watches.run())
    yield room
    await end_tasks([hearing])


async def test_a_silent_stream_is_kept_alive(room: Room) -> None:
    taken, client = await room.run_job(), Client()
    task = room.stream(taken, client, heartbeat_s=0.05)
    await wait_until_async(lambda: client.sent.count(HEARTBEAT) >= 3)
    assert (client.num("started"), client.is_whole) == (1, False)
    await room.jobs.settle("w1", taken, FINISHED)
    async with asyncio.timeout(5):
        await task
    assert client.num("finished") == 1 and client.is_whole and room.watches.num_watches == 0


async def test_who_does_not_read_is_not_read_for(room: Room) -> None:
    taken, client = await room.run_job(), Client()
    task = room.stream(taken, client)
    await wait_until_async(lambda: client.num("started") == 1)
    client.reads.clear()
    await room.say(taken, 100)  # it has these in hand
    await wait_until_async(lambda: _has_more(room, 1))
    looks = await room.num_reads()
    await room.say(taken, 500)
    assert await room.num_reads() <= looks + 1, "nothing is gathered for it"
    await room.jobs.settle("w1", taken, FINISHED)
    client.reads.set()
    async with asyncio.timeout(5):
        await task
    assert (client.num("log"), client.num("finished"), client.is_whole) == (600, 1, True)


async def test_who_leaves_takes_the_stream_along_even_if_it_did_not_read(room: Room) -> None:
    taken = await room.run_job()
    clients = [Client() for _ in range(20)]
    for client in clients[::2]:
        client.reads.clear()
    tasks = [room.stream(taken, client) for client in clients]
    await wait_until_async(lambda: room.watches.num_watches == 20)
    for client in clients:
        client.leave()
    async with asyncio.timeout(5):
        await wait_until_async(lambda: room.watches.num_watches == 0)
        for client in clients:
            client.reads.set()  # the server takes a last word of whoever has left
        await asyncio.gather(*tasks)


async def _has_more(room: Room, count: int) -> bool:
    return await room.num_reads() > count
