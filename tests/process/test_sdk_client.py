"""The Python client over real sockets: what it sends, returns, raises and retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import samovar
from samovar import errors
from samovar.connection import find_connection
from samovar.transport import terms
from support.http_peer import Asked, Reply, http_peer

pytestmark = pytest.mark.process

ANSWER = Reply(
    body=b'{"sum": 3.0}',
    headers={
        "Content-Type": "application/json",
        "Samovar-Version": "2",
        "X-Request-Id": "r1",
        "Server-Timing": "queue;dur=0.1, run;dur=2",
    },
)
PROBLEM = {"type": "urn:samovar:problem:function_not_found", "code": "function_not_found", "detail": "no such thing"}
STREAM = {"Content-Type": "application/x-ndjson"}


def test_a_call_and_its_receipt() -> None:
    with http_peer(lambda asked: ANSWER) as peer, samovar.Client(peer.url, "sv_k_secret") as client:
        add = client.function("add")
        assert add.invoke({"x": [1, 2]}, timeout_s=1.5) == {"sum": 3.0}
        answer = add.call({"x": [1, 2]})
    first, second = peer.asked
    assert (first.method, first.path, json.loads(first.body)) == ("POST", "/v1/functions/add/invoke", {"x": [1, 2]})
    assert first.headers["authorization"] == "Bearer sv_k_secret"
    assert first.headers["samovar-timeout-ms"] == "1500"
    assert "samovar-timeout-ms" not in second.headers, "without a timeout the function's own limit holds"
    assert (answer.version, answer.request_id, answer.phases_ms) == ("2", "r1", {"queue": 0.1, "run": 2.0})
    assert answer.fallback == ""


def test_a_receipt_says_what_stood_in() -> None:
    stood_in = Reply(200, b"1", {**ANSWER.headers, "Samovar-Fallback": "cached"})
    with http_peer(lambda asked: stood_in) as peer, samovar.Client(peer.url, "k") as client:
        assert client.function("add").call().fallback == "cached"


def test_names_cannot_leave_their_place_in_the_path() -> None:
    with http_peer(lambda asked: ANSWER) as peer, samovar.Client(peer.url, "k") as client:
        client.function("../keys?x").invoke()
    assert peer.asked[0].path == "/v1/functions/..%2Fkeys%3Fx/invoke"


def test_problems_are_raised_as_what_they_are() -> None:
    reply = Reply(404, json.dumps(PROBLEM).encode())
    with http_peer(lambda asked: reply) as peer, samovar.Client(peer.url, "k") as client:
        with pytest.raises(errors.FunctionNotFound, match="no such thing"):
            client.function("add").invoke()
        with pytest.raises(errors.FunctionNotFound, match="no such thing"):
            list(client.function("add").stream())


def test_503_is_retried_only_when_asked() -> None:
    def answer(asked: Asked) -> Reply:
        busy = Reply(503, b'{"code": "queue_full", "detail": "full"}', {"Retry-After": "0"})
        return ANSWER if len(peer.asked) % 3 == 0 else busy

    with http_peer(answer) as peer:
        with samovar.Client(peer.url, "k") as client, pytest.raises(errors.QueueFull):
            client.function("add").invoke()
        assert len(peer.asked) == 1
        with samovar.Client(peer.url, "k", max_retries=2) as client:
            assert client.function("add").invoke() == {"sum": 3.0}
        assert len(peer.asked) == 3


def test_a_stream_yields_items_then_its_error() -> None:
    lines = b'{"left": 1}\n\n{"left": 0}\n' + json.dumps({"error": PROBLEM}).encode() + b"\n"
    with http_peer(lambda asked: Reply(body=lines, headers=STREAM, cut=True)) as peer:
        with samovar.Client(peer.url, "k") as client:
            stream = client.function("countdown").stream({"text": "a b"})
            assert [next(stream), next(stream)] == [{"left": 1}, {"left": 0}]
            with pytest.raises(errors.FunctionNotFound):
                next(stream)


def test_half_a_stream_is_never_taken_for_a_whole_one() -> None:
    with http_peer(lambda asked: Reply(body=b"1\n2\n", headers=STREAM, cut=True)) as peer:
        with samovar.Client(peer.url, "k") as client, pytest.raises(errors.ConnectError, match="broke"):
            list(client.function("countdown").stream())


def test_nobody_there() -> None:
    with samovar.Client("http://127.0.0.1:1", "k") as client:
        with pytest.raises(errors.ConnectError, match=r"cannot reach the gateway at http://127\.0\.0\.1:1"):
            client.function("add").invoke()


async def test_the_async_client_does_the_same() -> None:
    def answer(asked: Asked) -> Reply:
        if "stream" in asked.path:
            return Reply(body=b"1\n2\n", headers=STREAM)
        return Reply(404, json.dumps(PROBLEM).encode()) if "none" in asked.path else ANSWER

    with http_peer(answer) as peer:
        async with samovar.AsyncClient(peer.url, "k") as client:
            add = client.function("add")
            answers = await asyncio.gather(*(add.invoke({"x": [n]}, timeout_s=5) for n in range(5)))
            assert answers == [{"sum": 3.0}] * 5
            assert (await add.call()).version == "2"
            assert [item async for item in client.function("stream").stream()] == [1, 2]
            with pytest.raises(errors.FunctionNotFound):
                await client.function("none").invoke()


def test_a_deadline_is_at_least_a_millisecond_and_the_client_waits_longer() -> None:
    options = terms(0.0001)
    assert options["headers"]["Samovar-Timeout-Ms"] == "1"
    assert options["timeout_s"] > 0.0001


def test_a_priority_is_sent_where_one_is_given() -> None:
    with http_peer(lambda asked: ANSWER) as peer, samovar.Client(peer.url, "k") as client:
        client.function("add").invoke({"x": [1]}, priority="low")
        client.function("add").invoke({"x": [1]})
        assert [asked.headers.get("samovar-priority") for asked in peer.asked] == ["low", None]


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://[x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="is not an address"):
        samovar.Client(url, "k")


def test_where_the_gateway_is(tmp_path: Path) -> None:
    local = {"SAMOVAR_DATA_DIR": str(tmp_path)}
    with pytest.raises(errors.ConfigError, match="samovar up"):
        find_connection(environ=local)
    (tmp_path / "connection.json").write_text('{"url": "http://local/", "admin_key": "local-key"}')

    def found(url: str | None = None, key: str | None = None, **environ: str) -> tuple[str, str]:
        connection = find_connection(url, key, local | environ)
        return connection.url, connection.api_key

    assert found() == ("http://local", "local-key")
    assert found(key="mine") == ("http://local", "mine")
    assert found(SAMOVAR_URL="http://far", SAMOVAR_API_KEY="k") == ("http://far", "k")
    assert found("http://flag", SAMOVAR_URL="http://far", SAMOVAR_API_KEY="k") == ("http://flag", "k")
    assert found("http://flag") == ("http://flag", ""), "the local admin key is never sent elsewhere"
    assert "local-key" not in repr(find_connection(environ=local))
    (tmp_path / "connection.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match="damaged"):
        find_connection(environ=local)
    (tmp_path / "connection.json").write_text('{"url": "", "admin_key": "k"}')
    with pytest.raises(errors.ConfigError, match="still starting"):
        find_connection(environ=local)
