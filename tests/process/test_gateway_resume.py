"""Streams that outlive their connections: two real gateways, a Valkey of their own, stand-in instances."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samovar
from samovar.errors import ConnectError, FunctionNotFound, FunctionRaised
from samovar.events import Done, Log, Output
from samovar.spec import Limits
from samovar_storage.embedded import EmbeddedSeaweed
from samovar_storage.objects import ObjectStore
from support.cutting_proxy import cutting_proxy
from support.folders import short_folder
from support.gateway import ADMIN_KEY, FakeInstance, Gateway, running_gateway
from support.gateway_pairs import two_gateways
from support.stores import Stores
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.process

EVENTS = {"accept": "text/event-stream"}
RESUMABLE = EVENTS | {"samovar-resume": "20"}


@dataclass
class Pair:
    """Two gateways on the same stores. valkey: the process; restart: starts it again after it was ended."""

    gateways: list[Gateway]
    stores: Stores
    store: ObjectStore
    valkey: subprocess.Popen[bytes]
    start_valkey: Callable[[], subprocess.Popen[bytes]]
    instances: dict[str, FakeInstance] = field(default_factory=dict)

    def deploy(self, name: str, timeout_s: float = 20.0) -> FakeInstance:
        """Deploy a generator that both gateways can call; return its stand-in instance."""
        one, two = self.gateways
        ref = one.deploy(name, limits=Limits(timeout_s=timeout_s), handler="generator").ref
        self.instances[name] = instance = one.start_instance(ref, concurrency=8)
        for gateway in (one, two):
            wait_until(partial(_answers, gateway, name))
        return instance

    @contextmanager
    def third(self, **more: Any) -> Iterator[Gateway]:
        """One more gateway, for a test that ends it."""
        with short_folder() as run, running_gateway(self.stores, self.store, Path(run), **more) as gateway:
            yield gateway


@pytest.fixture(scope="module")
def pair(seaweed: EmbeddedSeaweed) -> Iterator[Pair]:
    with two_gateways(seaweed) as two:
        yield Pair([*two.gateways], two.stores, two.store, two.process, two.start)


@dataclass
class Part:
    """What one connection gave. status, headers: of its answer."""

    status: int
    headers: httpx.Headers
    events: list[tuple[str, str, Any]] = field(default_factory=list)
    last_id: str = ""
    is_whole: bool = False

    @property
    def outputs(self) -> list[int]:
        return [data["n"] for _, kind, data in self.events if kind == "output"]

    @property
    def end(self) -> str:
        return self.events[-1][1] if self.events else ""

    @property
    def problem(self) -> Any:
        return self.events[-1][2]


def read(gateway: Gateway, name: str, sent: dict[str, str], body: Any = None, most: int = 1_000_000) -> Part:
    """Read at most so many events of a stream, then cut the connection. sent: headers."""
    path = f"/v1/functions/{name}/invoke"
    with gateway.client.stream("POST", path, json=body, headers=sent) as answer:
        part = Part(answer.status_code, answer.headers)
        if answer.status_code == 204:
            part.is_whole = True
            return part
        if answer.status_code != 200:
            part.events.append(("", "problem", json.loads(answer.read())))
            return part
        try:
            for block in blocks(answer):
                enter(part, block)
                if len(part.events) >= most:
                    return part
        except httpx.RemoteProtocolError:
            return part
        part.is_whole = True
    return part


def blocks(answer: httpx.Response) -> Iterator[str]:
    text = ""
    for piece in answer.iter_text():
        *whole, text = (text + piece).split("\n\n")
        yield from whole


def enter(part: Part, block: str) -> None:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    part.last_id = fields.get("id", part.last_id)
    if "event" in fields:
        part.events.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))


def resume(gateway: Gateway, name: str, last_id: str, most: int = 1_000_000, key: dict[str, str] | None = None) -> Part:
    return read(gateway, name, EVENTS | {"last-event-id": last_id} | (key or {}), most=most)


def test_ids_name_stream_and_place_and_the_header_is_confirmed(pair: Pair) -> None:
    pair.deploy("ids")
    part = read(pair.gateways[0], "ids", RESUMABLE, {"stream": 3})
    assert part.is_whole and part.headers["samovar-resume"] == "20" and part.headers["x-request-id"]
    ids = [event_id.rpartition("-") for event_id, _, _ in part.events]
    assert [number for _, _, number in ids] == ["1", "2", "3", "4"] and len({stream for stream, _, _ in ids}) == 1
    plain = read(pair.gateways[0], "ids", EVENTS, {"stream": 3})
    assert [event_id for event_id, _, _ in plain.events] == ["1", "2", "3", "4"]
    assert "samovar-resume" not in plain.headers


@pytest.mark.parametrize("other", [0, 1])
def test_cut_after_any_event_it_goes_on_where_it_was(pair: Pair, other: int) -> None:
    name = f"cut-{other}"
    pair.deploy(name)
    one, two = pair.gateways[0], pair.gateways[other]
    for most in range(1, 8):
        part = read(one, name, RESUMABLE, {"stream": 6, "pause_s": 0.01}, most=most)
        rest = resume(two, name, part.last_id)
        assert part.outputs + rest.outputs == [*range(6)], most
        if most == 7:
            assert rest.status == 204 and part.end == "done"
        else:
            assert rest.headers["samovar-resume"] == "20" and rest.headers["samovar-version"] == "1"
            assert rest.is_whole and rest.end == "done"


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=6))
def test_however_often_it_is_cut_each_event_comes_once_in_order(pair: Pair, cuts: list[tuple[int, bool]]) -> None:
    if "often" not in pair.instances:
        pair.deploy("often")
    body = {"stream": 150, "say": "tea"}
    parts = [read(pair.gateways[0], "often", RESUMABLE, body, most=cuts[0][0])]
    for most, is_other in [*cuts[1:], (1_000_000, True)]:
        parts.append(resume(pair.gateways[is_other], "often", parts[-1].last_id, most))
    events = [event for part in parts for event in part.events]
    numbers = [int(event_id.rpartition("-")[2]) for event_id, _, _ in events]
    assert numbers == [*range(1, len(events) + 1)] and events[-1][1] == "done"
    assert [data["n"] for _, kind, data in events if kind == "output"] == [*range(150)]
    assert events[-1][2]["num_outputs"] == 150


def test_an_end_that_was_lost_comes_again_also_an_error(pair: Pair) -> None:
    pair.deploy("ends")
    for body, end in (({"stream": 3}, "done"), ({"stream": 3, "raise_at": 2}, "error")):
        part = read(pair.gateways[0], "ends", RESUMABLE, body)
        assert part.end == end and part.is_whole == (end == "done")
        before = part.events[-2][0]
        for gateway in pair.gateways:
            again = resume(gateway, "ends", before)
            assert again.events == part.events[-1:] and again.is_whole == (end == "done")
            nothing = resume(gateway, "ends", part.last_id)
            assert (nothing.status, nothing.events) == (204, []), "who has the end has all"
            assert nothing.headers["x-request-id"] == again.headers["x-request-id"]


def test_failures_before_anything_was_sent_keep_their_status(pair: Pair) -> None:
    pair.deploy("refuses")
    part = read(pair.gateways[0], "refuses", RESUMABLE, {"stream": 3, "raise_at": 0})
    assert part.status == 500 and part.problem["code"] == "function_raised"
    for seconds in ("0", "61", "nan", "long"):
        part = read(pair.gateways[0], "refuses", EVENTS | {"samovar-resume": seconds}, {"stream": 1})
        assert part.status == 400 and "1 to 60" in part.problem["detail"]


def test_what_cannot_be_gone_on_with_is_said_clearly(pair: Pair) -> None:
    pair.deploy("mine")
    pair.deploy("other")
    part = read(pair.gateways[0], "mine", RESUMABLE, {"stream": 3})
    stream, _, _ = part.last_id.rpartition("-")
    owner, _, _ = stream.partition("-")
    made = pair.gateways[0].client.post("/v1/keys", json={"name": "k", "scopes": ["invoke"]}).json()
    strange = {"authorization": f"Bearer {made['key']}"}
    path = "/v1/functions/mine/invoke"
    for gateway in pair.gateways:
        wait_until(partial(_knows, gateway, strange))
        refusals = [
            (resume(gateway, "mine", f"{stream}-2", key=strange), 404, "stream_not_found"),
            (resume(gateway, "other", f"{stream}-2"), 404, "stream_not_found"),
            (resume(gateway, "mine", f"{owner}-{'0' * 16}-2"), 404, "stream_not_found"),
            (resume(gateway, "mine", f"{stream}-900"), 400, "malformed"),
            (resume(gateway, "mine", "17"), 400, "malformed"),
            (resume(gateway, "mine", "x" * 5000), 400, "malformed"),
            (resume(gateway, "mine", f"{'0' * 8}-{'0' * 16}-2"), 410, "stream_gone"),
        ]
        for refused, status, code in refusals:
            assert (refused.status, refused.problem["code"]) == (status, code)
        assert gateway.client.post(path, headers=EVENTS | {"last-event-id": f"{stream}-2"}).status_code == 200


def test_the_newer_of_two_readers_goes_on(pair: Pair) -> None:
    pair.deploy("two")
    one, two = pair.gateways
    path = "/v1/functions/two/invoke"
    with one.client.stream("POST", path, json={"stream": 40, "pause_s": 0.1}, headers=RESUMABLE) as answer:
        older, waiting = Part(answer.status_code, answer.headers), blocks(answer)
        while len(older.events) < 3:
            enter(older, next(waiting))
        newer = resume(two, "two", older.last_id)
        with pytest.raises(httpx.RemoteProtocolError):
            for block in waiting:
                enter(older, block)
    assert (older.end, older.problem["code"], older.events[-1][0]) == ("error", "stream_taken", "")
    assert newer.is_whole and newer.outputs == [*range(3, 40)]


@pytest.mark.parametrize("other", [0, 1])
def test_nobody_comes_back_and_the_generator_is_stopped(pair: Pair, other: int) -> None:
    name = f"alone-{other}"
    instance = pair.deploy(name)
    hurried = EVENTS | {"samovar-resume": "1"}
    part = read(pair.gateways[0], name, hurried, {"stream": 1000, "pause_s": 0.02}, most=3)
    if other:
        part = resume(pair.gateways[1], name, part.last_id, most=3)
    wait_until(lambda: _cancelled(pair.gateways[0], name) == 1, what="the call is cancelled")
    chunks = instance.behave()["chunks"]
    assert 6 < chunks < 500, "it went on meanwhile, and no longer"
    assert resume(pair.gateways[0], name, part.last_id).status == 404


def test_who_knows_no_position_leaves_for_good(pair: Pair) -> None:
    pair.deploy("unborn")
    one = pair.gateways[0]
    head = b"accept: text/event-stream\r\nsamovar-resume: 20\r\n"
    with one.connect() as connection:
        connection.sendall(one.raw("unborn", b'{"sleep_s": 15, "stream": 1}', head))
        wait_until(lambda: one.metric('samovar_running{function="unborn",version="1"}') == 1)
    wait_until(lambda: _cancelled(one, "unborn") == 1)


def test_a_gateway_that_may_keep_no_more_refuses_new_ones(pair: Pair) -> None:
    pair.deploy("crowd")
    with pair.third(resume_bytes=20_000) as small:
        wait_until(lambda: _answers(small, "crowd"))
        hurried = EVENTS | {"samovar-resume": "6"}
        parts = [read(small, "crowd", hurried, {"stream": 3}) for _ in range(4)]
        assert [part.status for part in parts] == [200, 200, 200, 503]
        assert "without Samovar-Resume" in parts[-1].problem["detail"]
        assert small.metric("samovar_resumable_streams") == 3
        assert read(small, "crowd", EVENTS, {"stream": 3}).is_whole
        wait_until(lambda: small.metric("samovar_resumable_bytes") == 0, what="they are forgotten")


def test_away_from_readers_little_is_kept_and_nothing_lost(pair: Pair) -> None:
    instance = pair.deploy("holds", timeout_s=100.0)
    body = {"stream": 2000, "pad": 8000}
    part = read(pair.gateways[0], "holds", RESUMABLE, body, most=1)
    before = _wait_until_held(instance)
    assert 800 < before < 1500, "8 MiB of events are kept"
    rest = resume(pair.gateways[1], "holds", part.last_id)
    assert rest.is_whole and part.outputs + rest.outputs == [*range(2000)]
    start = part.last_id.rpartition("-")[0] + "-1"
    gone = resume(pair.gateways[1], "holds", start)
    assert gone.status == 410 and "not kept any more" in gone.problem["detail"]


def test_what_lay_in_sockets_when_the_line_broke_is_told_again(pair: Pair) -> None:
    instance = pair.deploy("sockets", timeout_s=60.0)
    body = {"stream": 400, "pad": 60_000}
    with pair.gateways[0].client.stream("POST", _path("sockets"), json=body, headers=RESUMABLE) as answer:
        part, waiting = Part(answer.status_code, answer.headers), blocks(answer)
        while len(part.events) < 3:
            enter(part, next(waiting))
        _wait_until_held(instance)
    rest = resume(pair.gateways[1], "sockets", part.last_id)
    assert rest.is_whole and part.outputs + rest.outputs == [*range(400)]


def test_an_event_too_large_for_letters_is_its_owners_to_give(pair: Pair) -> None:
    pair.deploy("large")
    part = read(pair.gateways[0], "large", RESUMABLE, {"stream": 2, "pad": 17 << 20}, most=1)
    refused = resume(pair.gateways[1], "large", part.last_id)
    assert (refused.status, refused.problem["code"]) == (413, "body_too_large")
    rest = resume(pair.gateways[0], "large", part.last_id)
    assert rest.is_whole and part.outputs + rest.outputs == [0, 1]


def test_an_owner_that_leaves_waits_for_who_may_come_back(pair: Pair) -> None:
    pair.deploy("leaving")
    with pair.third() as owner:
        wait_until(lambda: owner.invoke("leaving", {"stream": 1}).status_code == 200)
        part = read(owner, "leaving", RESUMABLE, {"stream": 30, "pause_s": 0.05}, most=2)
        owner.process.send_signal(signal.SIGTERM)
        rest = resume(pair.gateways[1], "leaving", part.last_id)
        assert rest.is_whole and part.outputs + rest.outputs == [*range(30)]
        assert owner.process.wait(60) == 0, "nobody is on the way any more"


def test_an_owner_that_was_killed_is_gone_with_its_streams(pair: Pair) -> None:
    pair.deploy("killed")
    one = pair.gateways[0]
    with pair.third() as owner:
        wait_until(lambda: owner.invoke("killed", {"stream": 1}).status_code == 200)
        body = {"stream": 2000, "pause_s": 0.05}
        first, second = (read(owner, "killed", RESUMABLE, body, most=2) for _ in range(2))
        with one.client.stream(
            "POST", "/v1/functions/killed/invoke", headers=EVENTS | {"last-event-id": first.last_id}
        ) as answer:
            part, waiting = Part(answer.status_code, answer.headers), blocks(answer)
            while len(part.events) < 2:
                enter(part, next(waiting))
            owner.process.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                for block in waiting:
                    enter(part, block)
        assert (part.end, part.problem["code"], part.problem["status"]) == ("error", "stream_gone", 410)
        assert part.events[-1][0] == "", "the client keeps its place"
        late = resume(one, "killed", second.last_id)
        assert (late.status, late.problem["code"]) == (410, "stream_gone")


def test_redis_restarts_while_a_stream_is_read_elsewhere(pair: Pair) -> None:
    pair.deploy("restarted", timeout_s=60.0)
    one, two = pair.gateways
    path = "/v1/functions/restarted/invoke"
    part = read(one, "restarted", RESUMABLE, {"stream": 200, "pause_s": 0.05}, most=2)
    with two.client.stream("POST", path, headers=EVENTS | {"last-event-id": part.last_id}) as answer:
        waiting = blocks(answer)
        while len(part.events) < 10:
            enter(part, next(waiting))
        pair.valkey.kill()
        pair.valkey.wait()
        local = read(one, "restarted", RESUMABLE, {"stream": 3})
        assert local.is_whole and resume(one, "restarted", local.events[0][0]).is_whole, "at home nothing is amiss"
        refused = resume(two, "restarted", local.events[0][0])
        assert (refused.status, refused.problem["code"]) == (503, "store_unavailable")
        assert "at another gateway" in refused.problem["detail"]
        pair.valkey = pair.start_valkey()
        for block in waiting:
            enter(part, block)
    assert part.outputs == [*range(200)] and part.end == "done"


# ---- the Python client ---------------------------------------------------------------------------------------------

CUTS = (700, 300, 1000, 480, 650)  # bytes of an answer, its head included: within heads, between and within events


def test_the_client_makes_up_for_lost_connections_by_itself(pair: Pair) -> None:
    pair.deploy("client")
    urls = [gateway.url for gateway in pair.gateways]
    with cutting_proxy(urls, CUTS) as proxy, samovar.Client(proxy.url, ADMIN_KEY) as client:
        told = [*client.function("client").events({"stream": 40, "say": "tea"}, resume_s=20)]
        assert proxy.num_connections > len(CUTS)
        assert [*client.function("client").stream({"stream": 3}, resume_s=20)] == [{"n": n} for n in range(3)]
    assert [event.value["n"] for event in told if isinstance(event, Output)] == [*range(40)]
    assert [event.line for event in told if isinstance(event, Log)] == ["tea", *(f"tea {n}" for n in range(40))]
    assert isinstance(told[-1], Done) and told[-1].num_outputs == 40 and told[-1].headers["samovar-version"] == "1"


async def test_the_async_client_does_so_too_and_raises_the_error_of_the_call(pair: Pair) -> None:
    pair.deploy("aclient")
    urls = [gateway.url for gateway in pair.gateways]
    with cutting_proxy(urls, CUTS) as proxy:
        async with samovar.AsyncClient(proxy.url, ADMIN_KEY) as client:
            told = []
            with pytest.raises(FunctionRaised, match="tea spilt"):
                async for event in client.function("aclient").events({"stream": 40, "raise_at": 25}, resume_s=20):
                    told.append(event)
    assert [event.value["n"] for event in told if isinstance(event, Output)] == [*range(25)]


def test_without_resume_a_lost_connection_is_an_error(pair: Pair) -> None:
    pair.deploy("lost")
    with cutting_proxy([pair.gateways[0].url], [700]) as proxy, samovar.Client(proxy.url, ADMIN_KEY) as client:
        events = client.function("lost").events({"stream": 1000, "pause_s": 0.01})
        with pytest.raises(ConnectError):
            list(events)
        assert proxy.num_connections == 1
    wait_until(lambda: _cancelled(pair.gateways[0], "lost") == 1)


@pytest.mark.parametrize("resume_s", [None, 60.0])
def test_to_stop_reading_ends_the_call(pair: Pair, resume_s: float | None) -> None:
    name = f"stopped-{resume_s is None}".lower()
    pair.deploy(name)
    with samovar.Client(pair.gateways[0].url, ADMIN_KEY) as client:
        events = client.function(name).events({"stream": 1000, "pause_s": 0.05}, resume_s=resume_s)
        assert isinstance(next(events), Output)
        events.close()
        wait_until(lambda: _cancelled(pair.gateways[0], name) == 1)


async def test_to_close_an_async_iterator_ends_the_call(pair: Pair) -> None:
    pair.deploy("astopped")
    async with samovar.AsyncClient(pair.gateways[0].url, ADMIN_KEY) as client:
        events = client.function("astopped").events({"stream": 1000, "pause_s": 0.05}, resume_s=60)
        async with aclosing(events):
            assert isinstance(await anext(events), Output)
        await wait_until_async(lambda: _cancelled(pair.gateways[0], "astopped") == 1)


def test_refusals_are_raised_before_the_first_event(pair: Pair) -> None:
    with samovar.Client(pair.gateways[0].url, ADMIN_KEY) as client:
        with pytest.raises(FunctionNotFound):
            next(client.function("nobody").events({}, resume_s=20))
        with pytest.raises(ValueError, match="1 to 60"):
            client.function("nobody").events({}, resume_s=100)


def _path(name: str) -> str:
    return f"/v1/functions/{name}/invoke"


def _wait_until_held(instance: FakeInstance) -> int:
    """Wait until the generator waits for its reader; return how many items it has given."""
    before, num_same = -1, 0

    def is_held() -> bool:
        nonlocal before, num_same
        last, before = before, instance.behave()["chunks"]
        num_same = num_same + 1 if last == before else 0
        return num_same == 10  # a busy machine may keep it from going on for a while

    wait_until(is_held, what="the generator waits")
    return before


def _answers(gateway: Gateway, name: str) -> bool:
    return gateway.invoke(name, {"stream": 1}).status_code == 200


def _knows(gateway: Gateway, key: dict[str, str]) -> bool:
    return gateway.client.get("/v1/functions", headers=key).status_code == 200


def _cancelled(gateway: Gateway, name: str) -> float:
    return gateway.metric(f'samovar_calls_total{{code="cancelled",function="{name}",version="1"}}')


@pytest.mark.parametrize("other", [0, 1])
def test_who_gives_a_stream_up_ends_its_call_at_once(pair: Pair, other: int) -> None:
    name = f"unwanted-{other}"
    pair.deploy(name)
    part = read(pair.gateways[0], name, RESUMABLE, {"stream": 1000, "pause_s": 0.05}, most=3)
    gone = read(pair.gateways[other], name, EVENTS | {"last-event-id": part.last_id, "samovar-resume": "0"})
    assert gone.status == 204 and gone.headers["x-request-id"]
    wait_until(lambda: _cancelled(pair.gateways[0], name) == 1)
    assert resume(pair.gateways[0], name, part.last_id).status == 404
