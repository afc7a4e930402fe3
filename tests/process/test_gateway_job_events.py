"""What happens to a job, as server-sent events from real gateways, whoever leaves, dies or comes again."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.jobs import JobEvent, JobState, Progress
from samovar_storage import keys
from samovar_storage.jobs.events import append_events, log_event, output_event, progress_event, retry_event
from samovar_storage.jobs.records import Taken
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.hand_worker import HandWorker
from support.stores import Stores, stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]


class Event(NamedTuple):
    id: str
    kind: str
    data: dict[str, Any]

    @property
    def place(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.id.split("-"))


class House:
    """A gateway, its stores, and a worker moved by hand."""

    def __init__(self, gateway: Gateway, stores: Stores, store: ObjectStore) -> None:
        self.gateway = gateway
        self.stores = stores
        self.store = store
        self.hands = HandWorker(stores.redis_url, store)

    @contextmanager
    def another(self) -> Iterator[Gateway]:
        """One more gateway."""
        with short_folder() as folder, running_gateway(self.stores, self.store, folder) as gateway:
            yield gateway

    def submit(self, name: str, **more: Any) -> str:
        answer = self.gateway.client.post(f"/v1/functions/{name}/jobs", json={"input": {"n": 1}, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def take(self, name: str) -> Taken:
        taken: list[Taken] = wait_until(lambda: self.hands.take(name, ADMIN))
        return taken[0]

    def say(self, taken: Taken, *events: JobEvent) -> None:
        async def run() -> int:
            async with redis_async.Redis.from_url(self.stores.redis_url) as redis:
                return await append_events(redis, taken.id, taken.token, events)

        assert asyncio.run(run()) == len(events)

    def num_watched(self) -> int:
        return len(self.gateway.redis.pubsub_channels(keys.job_channel("*")))


@pytest.fixture(scope="module")
def house(valkey: Any, seaweed: Any) -> Iterator[House]:
    stores = stores_for_a_test(valkey, seaweed, 11)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as gateway:
            house = House(gateway, stores, store)
            yield house
            house.hands.close()
        store.close()


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """Yield events as an EventSource would; comments are dropped."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


class Follower:
    """A client of one job's events."""

    def __init__(self, gateway: Gateway, job_id: str, after: str = "", **query: str) -> None:
        headers = {"last-event-id": after} if after else {}
        self._stream = gateway.client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, params=query)

    def __enter__(self) -> Follower:
        self.response = self._stream.__enter__()
        self.events = parsed(self.response.iter_lines())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def next(self, count: int = 1) -> list[Event]:
        return [next(self.events) for _ in range(count)]


def all_events(gateway: Gateway, job_id: str, after: str = "", **query: str) -> list[Event]:
    """Return the events until the stream ends by itself."""
    with Follower(gateway, job_id, after, **query) as follower:
        assert follower.response.status_code == 200
        return list(follower.events)


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def num_clients(gateway: Gateway) -> int:
    """Return how many connections of clients a gateway has."""
    port = int(gateway.url.rpartition(":")[2])
    found = psutil.Process(gateway.process.pid).net_connections("tcp")
    return sum(one.laddr.port == port and one.status != psutil.CONN_LISTEN for one in found if one.laddr)


def test_a_job_is_followed_from_queue_to_end(house: House) -> None:
    house.gateway.deploy("follow")
    job_id = house.submit("follow")
    with Follower(house.gateway, job_id) as follower:
        assert follower.response.headers["content-type"].startswith("text/event-stream")
        assert follower.response.headers["cache-control"] == "no-store"
        (queued,) = follower.next()
        assert (queued.id, queued.kind) == ("0-1", "queued")
        assert (queued.data["position"], queued.data["wait_reason"]) == (0, "no_worker")
        taken = house.take("follow")
        (started,) = follower.next()
        assert (started.kind, started.data["attempt"]) == ("started", 1)
        house.say(taken, progress_event(Progress(fraction=0.4, message="half"), time.time()), log_event("hm", 7.0))
        progress, line = follower.next(2)
        assert (progress.kind, progress.data["fraction"], progress.data["message"]) == ("progress", 0.4, "half")
        assert (line.kind, line.data) == ("log", {"at_s": 7.0, "line": "hm"})
        house.say(taken, output_event(b'{"n":1}', 8.0))
        assert follower.next()[0].data["item"] == {"n": 1}
        house.hands.settle(taken)
        rest = list(follower.events)
        assert kinds(rest) == ["finished"] and rest[0].data["result_bytes"] == len(taken.input)
        seen = [queued, started, progress, line, rest[0]]
        assert [event.place for event in seen] == sorted({event.place for event in seen})


def test_a_replay_is_the_rest_from_any_place_and_by_any_gateway(house: House) -> None:
    house.gateway.deploy("replay")
    job_id = house.submit("replay")
    first = house.take("replay")
    error = {"code": "function_raised", "detail": "no tea"}
    house.say(first, log_event("one", 1.0), retry_event(1, time.time(), error, 0.0, time.time()))
    house.hands.settle(first, state=JobState.QUEUED, failures=1, error=error)
    second = house.take("replay")
    house.say(second, *(log_event(f"line {n}", 2.0) for n in range(250)))
    house.hands.settle(second, state=JobState.FAILED, failures=2, error=error)
    story = all_events(house.gateway, job_id)
    assert kinds(story[:5]) == ["queued", "started", "log", "retry", "started"]
    assert kinds(story[5:-1]) == ["log"] * 250 and story[-1].kind == "failed"
    assert story[3].data["error"]["code"] == story[-1].data["error"]["code"] == "function_raised"
    assert [event.place for event in story] == sorted({event.place for event in story})
    with house.another() as other:
        for place in (*range(6), 130, len(story) - 2):
            assert all_events(other, job_id, story[place].id) == story[place + 1 :]
        assert all_events(other, job_id, last_event_id=story[2].id) == story[3:]
        assert all_events(other, job_id, "from somewhere else") == story
        over = other.client.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": story[-1].id})
        assert (over.status_code, over.content) == (204, b"")
    house.gateway.redis.delete(keys.job_events(job_id))
    assert kinds(all_events(house.gateway, job_id)) == ["queued", "started", "failed"]


def test_a_job_that_waits_says_so_again_only_if_something_changed(house: House) -> None:
    house.gateway.deploy("places")
    front, back = house.submit("places"), house.submit("places")
    with Follower(house.gateway, back) as follower:
        assert follower.next()[0].data["position"] == 1
        taken = house.take("places")
        assert taken.id == front
        (moved,) = follower.next()
        assert (moved.kind, moved.data["position"]) == ("queued", 0)
        assert moved.place > (0, 1)
        house.hands.settle(house.take("places"))
        assert kinds(list(follower.events)) == ["started", "finished"]
    house.hands.settle(taken)
    delayed = house.submit("places", delay_s=3600)
    with Follower(house.gateway, delayed) as follower:
        (queued,) = follower.next()
        assert queued.data["wait_reason"] == "delayed" and queued.data["due_at_s"] > time.time() + 3000
        assert house.gateway.client.delete(f"/v1/jobs/{delayed}").status_code == 200
        assert kinds(list(follower.events)) == ["canceled"]


def test_only_who_may_see_a_job_may_follow_it(house: House) -> None:
    house.gateway.deploy("secret")
    job_id = house.submit("secret")
    made = house.gateway.client.post("/v1/keys", json={"name": "k", "scopes": ["invoke"]}).json()
    header = {"authorization": f"Bearer {made['key']}"}
    url = f"{house.gateway.url}/v1/jobs/{job_id}/events"
    assert httpx.get(url).status_code == 401
    assert wait_until(lambda: httpx.get(url, headers=header).status_code == 404)
    for unknown in ("f" * 24, "nonsense"):
        assert house.gateway.client.get(f"/v1/jobs/{unknown}/events").status_code == 404


def test_clients_that_vanish_leave_nothing_behind(house: House) -> None:
    house.gateway.deploy("vanish")
    job_ids = [house.submit("vanish") for _ in range(10)]
    wait_until(lambda: house.num_watched() == 0)
    clients: list[socket.socket] = []
    for number in range(200):
        client = house.gateway.connect()
        path = f"/v1/jobs/{job_ids[number % 10]}/events"
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n\r\n".encode())
        clients.append(client)
    for client in clients:
        received = b""
        while b"event: queued" not in received:
            received += client.recv(4096)
    assert house.num_watched() == 10 and num_clients(house.gateway) >= 200
    for number, client in enumerate(clients):
        if number % 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, no farewell
        client.close()
    wait_until(lambda: house.num_watched() == 0)
    wait_until(lambda: num_clients(house.gateway) <= 2)
    for _ in job_ids:
        house.hands.settle(house.take("vanish"))


def test_a_client_goes_on_at_another_gateway_when_its_own_is_killed(house: House) -> None:
    house.gateway.deploy("killed")
    with house.another() as first, house.another() as second:
        job_id = house.submit("killed")
        with Follower(first, job_id) as follower:
            follower.next()
            taken = house.take("killed")
            house.say(taken, log_event("one", 1.0))
            seen = follower.next(2)
            assert kinds(seen) == ["started", "log"]
            first.process.kill()
            with pytest.raises(httpx.TransportError):
                next(follower.events)
        house.say(taken, log_event("two", 2.0))
        with Follower(second, job_id, seen[-1].id) as follower:
            (line,) = follower.next()
            assert line.data["line"] == "two"
            house.hands.settle(taken)
            assert kinds(list(follower.events)) == ["finished"]


def test_a_gateway_that_leaves_ends_streams_politely(house: House) -> None:
    house.gateway.deploy("leaves")
    job_id, other_id = house.submit("leaves"), house.submit("leaves")
    with ThreadPoolExecutor(1) as pool, house.another() as gateway, ExitStack() as stack:
        followers = [stack.enter_context(Follower(gateway, job_id)) for _ in range(20)]
        assert {follower.next()[0].kind for follower in followers} == {"queued"}
        waiting = pool.submit(gateway.client.get, f"/v1/jobs/{other_id}", params={"wait_s": "50"})
        wait_until(lambda: house.num_watched() == 2)
        gateway.process.send_signal(signal.SIGTERM)
        rests = [list(follower.events) for follower in followers]  # a stream that was cut would raise
        assert rests == [[]] * 20
        assert waiting.result(40).json()["state"] == "queued", "long before its time is over"
        assert gateway.process.wait(60) == 0
    taken = house.take("leaves")
    house.hands.settle(taken)
    assert kinds(all_events(house.gateway, job_id, "0-1")) == ["started", "finished"]


def test_an_answer_is_waited_for_without_asking_again_and_again(house: House) -> None:
    house.gateway.deploy("waited")
    job_id = house.submit("waited")
    with ThreadPoolExecutor(20) as pool:
        url, query = f"/v1/jobs/{job_id}", {"wait_s": "20"}
        waiting = [pool.submit(house.gateway.client.get, url, params=query) for _ in range(20)]
        wait_until(lambda: house.num_watched() == 1)
        house.hands.settle(house.take("waited"))
        states = [answer.result(60).json()["state"] for answer in waiting]
    assert states == ["finished"] * 20


def test_a_slow_reader_gets_everything_in_the_end(house: House) -> None:
    house.gateway.deploy("slow")
    job_id = house.submit("slow")
    taken = house.take("slow")
    with Follower(house.gateway, job_id) as follower:
        follower.next(2)
        process = psutil.Process(house.gateway.process.pid)
        before = process.memory_info().rss
        for _ in range(8):  # 8 MB that are not read
            house.say(taken, *(log_event("x" * 8000, 1.0) for _ in range(125)))
        assert process.memory_info().rss - before < 64 << 20
        house.hands.settle(taken, state=JobState.FAILED, error={"code": "function_raised"})
        rest = list(follower.events)
    assert kinds(rest) == ["log"] * 1000 + ["failed"]
    assert [event.place[1] for event in rest[:-1]] == [*range(1, 1001)]
