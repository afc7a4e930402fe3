"""Deliveries to a real receiver: signed, retried, redirected with care, never to this side of the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio as redis_async

from samovar.jobs import JobState
from samovar_jobs.webhooks.deliverer import Deliverer
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.webhook_secrets import WebhookSecrets
from samovar_storage.jobs.webhook_urls import Allowed, parse_allow
from samovar_storage.jobs.webhooks import Webhooks
from samovar_storage.objects import ObjectStore
from support.hooks import KEY, end, spec
from support.receiver import Receiver, receiving
from support.waiting import wait_until_async

LOOPBACK = parse_allow("127.0.0.0/8")


class Records:
    """Jobs that ended: `result` is what they came to; those in `forgotten` are gone."""

    def __init__(self) -> None:
        self.result = b'{"sum": 3}'
        self.forgotten: set[str] = set()

    async def get_many(self, job_ids: list[str]) -> list[JobRecord | None]:
        """Return these jobs."""
        return [None if job_id in self.forgotten else self._record(job_id) for job_id in job_ids]

    def _record(self, job_id: str) -> JobRecord:
        kind = "application/json"
        size = len(self.result)
        state = JobState.FINISHED
        return JobRecord(
            id=job_id,
            spec=spec("http://x/"),
            state=state,
            queue="q",
            result=self.result,
            result_bytes=size,
            result_type=kind,
        )


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on loopback."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def secret(object_store: ObjectStore) -> str:
    """The secret of the key that submits."""
    return WebhookSecrets(object_store).get(KEY).secret


class Setup:
    """What deliveries need; `running` delivers for the body of a `with`."""

    def __init__(self, redis: redis_async.Redis, store: ObjectStore) -> None:
        self.redis = redis
        self.store = store
        self.records = Records()
        self.events = Webhooks(redis)

    @asynccontextmanager
    async def running(self, allowed: Allowed = LOOPBACK, resolve: Any = None) -> AsyncIterator[Deliverer]:
        """Deliver for the body of a `with`."""
        deliverer = Deliverer(self.redis, self.store, self.records, allowed, 64, resolve)
        task = asyncio.create_task(deliverer.run())
        try:
            yield deliverer
        finally:
            await end_tasks([task])
            await deliverer.close()

    async def error(self, job_id: str, state: str = "finished") -> str:
        """Return what the last attempt of an event failed with, once it did."""

        async def found() -> str:
            events = await self.events.open(KEY, 2000)
            return next((event.last_error for event in events if event.id == f"{job_id}.{state}"), "")

        return str(await wait_until_async(found))


@pytest.fixture
def setup(aredis: redis_async.Redis, object_store: ObjectStore, secret: str) -> Setup:
    """Deliveries over this test's stores."""
    return Setup(aredis, object_store)


async def test_a_job_that_ended_is_told_with_a_good_signature(setup: Setup, receiver: Receiver, secret: str) -> None:
    async with setup.running() as deliverer:
        await end(setup.redis, "a", f"{receiver.url}/hook?x=1")
        await wait_until_async(lambda: deliverer.counts["delivered"] == 1)
    (request,) = receiver.seen
    event = request.event(secret)
    assert (request.method, request.path) == ("POST", "/hook?x=1")
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert (event["id"], event["type"]) == ("a.finished", "job.finished")
    assert (event["job"]["id"], event["job"]["state"], event["job"]["result"]) == ("a", "finished", {"sum": 3})
    assert await setup.events.open(KEY, 10) == []


async def test_a_large_result_is_a_link_and_a_forgotten_job_is_told_all_the_same(
    setup: Setup, receiver: Receiver, secret: str
) -> None:
    setup.records.result = json.dumps("x" * 5000).encode()
    setup.records.forgotten.add("b")
    async with setup.running() as deliverer:
        await end(setup.redis, "a", receiver.url + "/a")
        await end(setup.redis, "b", receiver.url + "/b")
        await wait_until_async(lambda: deliverer.counts["delivered"] == 2)
    events = {request.path: request.event(secret) for request in receiver.seen}
    assert events["/a"]["result_url"] == "/v1/jobs/a/result"
    assert "result" not in events["/a"]["job"]
    assert events["/b"]["job"] == {"id": "b", "function": "echo", "state": "finished", "key_id": KEY}


async def test_a_failure_is_tried_again_with_the_same_id_and_body(
    setup: Setup, receiver: Receiver, secret: str
) -> None:
    receiver.answers["/"] = 500
    async with setup.running():
        await end(setup.redis, "a", receiver.url)
        assert await setup.error("a") == "answered 500"
        receiver.answers["/"] = 204
        setup.records.result = b'"another"'
        await setup.events.replay("a", "finished")
        await wait_until_async(lambda: len(receiver.seen) > 1)
    assert {(request.headers["webhook-id"], request.body) for request in receiver.seen} == {
        ("a.finished", receiver.seen[0].body)
    }


async def test_both_secrets_sign_while_they_overlap(setup: Setup, receiver: Receiver, secret: str) -> None:
    new = WebhookSecrets(setup.store).rotate(KEY, 3600)
    assert secret not in repr(new) and new.secret not in repr(new)
    async with setup.running():
        await end(setup.redis, "a", receiver.url)
        await wait_until_async(lambda: receiver.seen)
    assert receiver.seen[0].event(secret) == receiver.seen[0].event(new.secret)
    assert WebhookSecrets(setup.store).rotate(KEY, 0).previous == ""


async def test_gone_disables_the_endpoint_at_once(setup: Setup, receiver: Receiver) -> None:
    receiver.answers["/"] = 410
    async with setup.running() as deliverer:
        await end(setup.redis, "a", receiver.url)
        await wait_until_async(lambda: deliverer.counts["disabled"] == 1)
        await end(setup.redis, "b", receiver.url)
        await wait_until_async(lambda: setup.events.endpoints(KEY))
        receiver.answers["/"] = 200
        await wait_until_async(lambda: _num_dead(setup, 2))
        assert await setup.events.enable(KEY, receiver.url) == 2
        await wait_until_async(lambda: deliverer.counts["delivered"] == 2)


async def _num_dead(setup: Setup, wanted: int) -> bool:
    return sum(event.dead_ms > 0 for event in await setup.events.open(KEY, 10)) == wanted


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_method_is_followed(setup: Setup, receiver: Receiver, status: int) -> None:
    receiver.answers["/"] = (status, {"location": "/there"}, b"")
    async with setup.running() as deliverer:
        await end(setup.redis, "a", receiver.url)
        await wait_until_async(lambda: deliverer.counts["delivered"] == 1)
    first, second = receiver.seen
    assert (second.method, second.path, second.body) == ("POST", "/there", first.body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, {"location": "/there"}, b""), "only 307 and 308"),
        ((307, {}, b""), "without a location"),
        ((307, {"location": "/"}, b""), "more than 3 redirects"),
        ((307, {"location": "file:///etc/passwd"}, b""), "begins with https"),
        ((307, {"location": "http://user@127.0.0.1/"}, b""), "no user or password"),
    ],
)
async def test_other_redirects_are_failures(setup: Setup, receiver: Receiver, answer: Any, words: str) -> None:
    receiver.answers["/"] = answer
    async with setup.running():
        await end(setup.redis, "a", receiver.url)
        assert words in await setup.error("a")
    assert all(request.path == "/" for request in receiver.seen)


async def test_an_endless_answer_is_not_read_to_its_end(setup: Setup, receiver: Receiver) -> None:
    receiver.answers["/"] = (200, {}, b"x" * 10_000_000)
    async with setup.running() as deliverer:
        await end(setup.redis, "a", receiver.url)
        await wait_until_async(lambda: deliverer.counts["delivered"] == 1)


async def test_nothing_on_this_side_is_connected_to(setup: Setup, receiver: Receiver) -> None:
    async def names(host: str, port: int) -> list[str]:
        return {"mixed.test": ["93.184.216.34", "127.0.0.1"]}.get(host, ["127.0.0.1"])

    async with setup.running(Allowed(), names):
        await end(setup.redis, "a", receiver.url)
        await end(setup.redis, "b", f"http://inside.test:{receiver.port}/")
        await end(setup.redis, "c", f"http://mixed.test:{receiver.port}/")
        for name in ("a", "b", "c"):
            assert "private, local or reserved" in await setup.error(name)
    assert receiver.seen == []


async def test_a_redirect_from_an_allowed_host_to_this_side_is_refused(setup: Setup, receiver: Receiver) -> None:
    async def names(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    receiver.answers["/literal"] = (307, {"location": f"{receiver.url}/secret"}, b"")
    receiver.answers["/named"] = (307, {"location": f"http://inside.test:{receiver.port}/secret"}, b"")
    async with setup.running(parse_allow("outside.test"), names):
        for name in ("literal", "named"):
            await end(setup.redis, name, f"http://outside.test:{receiver.port}/{name}")
            assert "private, local or reserved" in await setup.error(name)
    assert {request.path for request in receiver.seen} == {"/literal", "/named"}


async def test_a_name_that_changes_after_the_check_leads_nowhere_else(setup: Setup, receiver: Receiver) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1"]])
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    async with setup.running(LOOPBACK, rebinding) as deliverer:
        await end(setup.redis, "a", f"http://rebinds.test:{receiver.port}/")
        await wait_until_async(lambda: deliverer.counts["delivered"] == 1)
    assert asked == ["rebinds.test"], "looked up once: what was checked is what was connected to"
    assert receiver.seen[0].headers["host"] == f"rebinds.test:{receiver.port}"


async def test_a_thousand_events_to_hosts_that_hang_do_not_hold_up_others(setup: Setup, receiver: Receiver) -> None:
    with receiving() as other:
        for number in range(1000):
            await end(setup.redis, f"h{number}", f"{receiver.url}/hang/{number}")
        async with setup.running() as deliverer:
            await wait_until_async(lambda: len(receiver.seen) == 8)
            for number in range(20):
                await end(setup.redis, f"o{number}", f"{other.url}/")
            await wait_until_async(lambda: deliverer.counts["delivered"] == 20)
            assert len(other.seen) == 20
            assert (deliverer.num_sending, len(receiver.seen)) == (8, 8), "one host has a few of the places"
            receiver.hang.set()


async def test_a_slow_delivery_keeps_its_lease_and_a_worker_that_leaves_gives_it_back(
    setup: Setup, receiver: Receiver
) -> None:
    async def lease_ends_ms() -> float:
        lanes = [key async for key in setup.redis.scan_iter("sv:webhooks:leased:*")]
        return float(await setup.redis.zscore(lanes[0], "a.finished") or 0) if lanes else 0.0

    async with setup.running():
        await end(setup.redis, "a", f"{receiver.url}/hang")
        first_ms = float(await wait_until_async(lease_ends_ms))

        async def is_renewed() -> bool:
            return await lease_ends_ms() > first_ms

        await wait_until_async(is_renewed)
    assert await lease_ends_ms() == 0
    (event,) = await setup.events.claim("another", 10, 10)
    assert (event.id, event.attempts, len(receiver.seen)) == ("a.finished", 0, 1)
