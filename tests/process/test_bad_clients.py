"""Clients that are broken, slow, greedy or mean: each gets a clear answer, and nobody else notices."""

from __future__ import annotations

import json
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis as redis_sync

from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

MAX_BODY_BYTES = 100_000
HEAD = b"POST /v1/functions/echo/invoke HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + ADMIN_KEY.encode() + b"\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def gateway_on(valkey: Any, seaweed: Any, database: int, **settings: Any) -> Iterator[Gateway]:
    stores = stores_for_a_test(valkey, seaweed, database)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, **settings) as running:
            running.log = folder / "gateway.log"  # type: ignore[attr-defined]
            running.start_instance(running.deploy("echo").ref, 4)
            wait_until(lambda: running.metric("samovar_ready_instances") == 1)
            yield running
        store.close()


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module, with little patience."""
    yield from gateway_on(valkey, seaweed, 10, max_body_bytes=MAX_BODY_BYTES, body_timeout_s=1.5)


@pytest.fixture(autouse=True)
def unharmed(gateway: Gateway) -> Iterator[None]:
    """Whatever a client did, the next one is served by the same process, and nothing failed inside."""
    yield
    answer = gateway.invoke("echo", {"x": [1, 2]})
    assert (answer.status_code, answer.json()) == (200, {"sum": 3})
    assert gateway.process.poll() is None
    log = Path(gateway.log).read_text()  # type: ignore[attr-defined]
    assert "Traceback" not in log, log


def said(gateway: Gateway, *pieces: bytes) -> bytes:
    """Send the pieces, then return everything the gateway says until it closes the connection."""
    with gateway.connect() as connection:
        heard = b""
        with suppress(BrokenPipeError, ConnectionResetError):  # it closed while we were still sending
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                heard += data
        return heard


def one_answer(connection: socket.socket) -> bytes:
    """Return the next answer, all of it, in however many pieces it comes."""
    heard = connection.recv(65536)
    while not (found := re.search(rb"content-length: (\d+)\r\n", heard)) or b"\r\n\r\n" not in heard:
        heard += connection.recv(65536)
    while len(heard.partition(b"\r\n\r\n")[2]) < int(found[1]):
        heard += connection.recv(65536)
    return heard


def statuses(heard: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]


def code_of(heard: bytes) -> str:
    return str(json.loads(heard.partition(b"\r\n\r\n")[2])["code"])


# ---- heads -------------------------------------------------------------------------------------------------------


def test_slow_heads_end(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        connection.sendall(b"POST /v1/func")
        heard = one_answer(connection)
        assert (statuses(heard), code_of(heard)) == ([408], "client_too_slow")
        assert connection.recv(1) == b""


def test_slow_bodies_end(gateway: Gateway) -> None:
    heard = said(gateway, HEAD + b"content-length: 1000\r\n\r\n", b"{")
    assert (statuses(heard), code_of(heard)) == ([408], "client_too_slow")


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"x-%d: y\r\n" % number for number in range(200)),
        b"x-large: " + b"y" * 70_000 + b"\r\n",
        b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(100)),
    ],
    ids=["many", "one large", "many large"],
)
def test_header_floods_are_431(gateway: Gateway, flood: bytes) -> None:
    whole = said(gateway, HEAD + flood + b"content-length: 2\r\n\r\n{}")
    assert (statuses(whole), code_of(whole)) == ([431], "head_too_large")
    in_pieces = said(gateway, HEAD, flood[: len(flood) // 2], flood[len(flood) // 2 :], b"content-length: 2\r\n\r\n{}")
    assert statuses(in_pieces) == [431]


def test_a_head_that_never_ends_is_cut_off(gateway: Gateway) -> None:
    before = psutil.Process(gateway.process.pid).memory_info().rss
    heard = said(gateway, HEAD, *(b"x-%d: %s\r\n" % (number, b"y" * 10_000) for number in range(2000)))
    assert statuses(heard) in ([431], [])  # the answer may be lost with what was still being sent
    assert psutil.Process(gateway.process.pid).memory_info().rss < before + (16 << 20)


def test_a_url_that_never_ends_is_cut_off(gateway: Gateway) -> None:
    heard = said(gateway, b"GET /" + b"a" * 60_000, b"a" * 60_000, b"a" * 60_000)
    assert statuses(heard) in ([431], [])


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n\x00\x00\x00",
        b"GET\r\n\r\n",
        HEAD + b"bad header\r\n\r\n",
        HEAD + b"x-nul: a\x00b\r\n\r\n",
        HEAD + b" folded: a\r\n\r\n",
        HEAD + b"spaced : a\r\n\r\n",
        b"POST /v1/functions/echo/invoke HTTP/9.9\r\nhost: x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400(gateway: Gateway, request_bytes: bytes) -> None:
    heard = said(gateway, request_bytes)
    assert (statuses(heard), code_of(heard)) == ([400], "malformed")
    assert b"connection: close" in heard


# ---- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        b"content-length: -1\r\n",
        b"content-length: 2x\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"content-length: 2\r\ncontent-length: 3\r\n",
        b"content-length: 2\r\ncontent-length: 2\r\n",
        b"content-length: 2, 2\r\n",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    ],
)
def test_lengths_that_lie_or_disagree_are_400(gateway: Gateway, lines: bytes) -> None:
    """Above all: nothing that two servers could read differently is ever taken for a request."""
    smuggled = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    heard = said(gateway, HEAD + lines + b"\r\n{}" + smuggled)
    assert (statuses(heard), code_of(heard)) == ([400], "malformed")


def test_a_body_longer_than_it_says_ends_the_connection(gateway: Gateway) -> None:
    heard = said(gateway, HEAD + b'content-length: 10\r\n\r\n{"x": [1]}and more that is no request\r\n\r\n')
    assert statuses(heard) == [200], "the call was whole; what follows is no request"
    assert b"connection: close" in heard


def test_a_body_shorter_than_it_says_is_waited_for_and_refused(gateway: Gateway) -> None:
    heard = said(gateway, HEAD + b'content-length: 11\r\n\r\n{"x": [1]}')
    assert (statuses(heard), code_of(heard)) == ([408], "client_too_slow")


def test_an_answer_that_is_owed_comes_before_the_end(gateway: Gateway) -> None:
    call = HEAD + b'content-length: 16\r\n\r\n{"sleep_s": 0.3}'
    heard = said(gateway, call + b"\x00 no request\r\n\r\n")
    assert statuses(heard) == [200]
    assert b"connection: close" in heard


@pytest.mark.parametrize("size", [b"zz", b"-1", b"fffffffffffffffffff", b"0x2", b""])
def test_bad_chunk_sizes_are_400(gateway: Gateway, size: bytes) -> None:
    in_one = said(gateway, CHUNKED + size + b"\r\n{}\r\n0\r\n\r\n")
    assert (statuses(in_one), code_of(in_one)) == ([400], "malformed")
    later = said(gateway, CHUNKED + b"1\r\n{\r\n", size + b"\r\n}\r\n0\r\n\r\n")
    assert statuses(later) == [400]


def test_a_chunk_longer_than_it_says_is_400(gateway: Gateway) -> None:
    assert statuses(said(gateway, CHUNKED + b"2\r\n{}garbage\r\n0\r\n\r\n")) == [400]


def test_endless_extensions_and_tiny_chunks_are_cut_off(gateway: Gateway) -> None:
    extension = said(gateway, CHUNKED + b"1;", *[b"x" * 50_000] * 20)
    assert statuses(extension) in ([413], [])
    tiny = said(gateway, CHUNKED, *[b"1\r\n \r\n" * 10_000] * 20)
    assert statuses(tiny) in ([413], [])


def test_trailers_are_no_headers(gateway: Gateway) -> None:
    head = (
        b"POST /v1/functions/echo/invoke HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    trailer = b"authorization: Bearer " + ADMIN_KEY.encode() + b"\r\n\r\n"
    heard = said(gateway, head + b"2\r\n{}\r\n0\r\n" + trailer)
    assert (statuses(heard), code_of(heard)) == ([401], "unauthenticated")
    flood = said(gateway, CHUNKED + b"2\r\n{}\r\n0\r\n", *[b"x: " + b"y" * 50_000 + b"\r\n"] * 20)
    assert statuses(flood) in ([413], [])


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip", "\u00e9"])
def test_compressed_bodies_are_not_taken(gateway: Gateway, encoding: str) -> None:
    """So there is nothing to unpack, and no bomb in it."""
    answer = gateway.invoke("echo", b"\x1f\x8b", content_encoding=encoding.encode("latin-1"))  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")
    admin = gateway.client.post("/v1/keys", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (admin.status_code, admin.json()["code"]) == (415, "unsupported_encoding")


def test_uploads_that_are_broken_off_leave_nothing(gateway: Gateway) -> None:
    process = psutil.Process(gateway.process.pid)
    before = process.num_fds()
    for number in range(50):
        with gateway.connect() as connection:
            connection.sendall(HEAD + b"content-length: 50000\r\n\r\n" + b"x" * (number * 900))
            if number % 2:  # a reset rather than an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    wait_until(lambda: process.num_fds() <= before)
    assert gateway.metric("samovar_running") == gateway.metric("samovar_queued") == 0


# ---- what is in it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/functions/../keys/invoke",
        "/v1/functions/%2e%2e/keys/invoke",
        "/v1/functions/%2e%2e%2fkeys/invoke",
        "/v1/functions//invoke",
        "/v1/functions/echo//invoke",
        "/v1//functions/echo/invoke",
        "/v1/functions/echo%2finvoke",
        "/v1/functions/echo%00/invoke",
        "/v1/functions/ech%C3%A9/invoke",
        "/v1/functions/%ff%fe/invoke",
        "/v1/functions/%c0%ae%c0%ae/invoke",
        "/v1/functions/echo;x=1/invoke",
        "/v1/functions/echo/invoke/",
        "/v1/functions/ECHO/invoke",
        "/v1/functions/" + "a" * 5000 + "/invoke",
        "/v1/functions/" + "%41" * 5000 + "/invoke",
        "//v1/functions/echo/invoke",
    ],
)
def test_path_tricks_find_nothing(gateway: Gateway, path: str) -> None:
    there = HEAD.replace(b"/v1/functions/echo/invoke", path.encode()) + b"connection: close\r\n"
    heard = said(gateway, there + b"content-length: 2\r\n\r\n{}")
    assert statuses(heard) in ([404], [405]), heard[:300]
    for what in ("/logs", "/openapi.json", "/why", "/requests"):
        other = path.replace("/invoke", "").replace("%2finvoke", "") + what
        heard = said(gateway, b"GET" + there.replace(path.encode(), other.encode())[4:] + b"\r\n")
        assert statuses(heard) in ([404], [405]) or other == f"/v1/functions/echo{what}", (other, heard[:300])


def test_a_path_of_raw_bytes_is_refused(gateway: Gateway) -> None:
    heard = said(gateway, HEAD.replace(b"echo", b"\xff\xfe\x80") + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
    assert statuses(heard)[0] in (400, 404)


DEEP = b"[" * 40_000 + b"]" * 40_000


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/uploads", "/v1/functions/echo/versions", "/v1/functions/echo/scale"])
@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b'{"name":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"x":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"name": "\xff\xfe"}',
        b"\xef\xbb\xbf{}",
        b"{" * 5,
        b"",
        b"NaN",
        b"null",
        b'{"name": "a", "name": 7}',
        b'{"name": 1e999}',
    ],
    ids=range(11),
)
def test_bodies_for_the_platform_that_are_no_good(gateway: Gateway, path: str, body: bytes) -> None:
    answer = gateway.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.mark.parametrize(
    "content_type", [b"text/plain", b"", b"application/x-www-form-urlencoded", b"\xff/\xfe", b";;;", b"a" * 5000]
)
def test_content_types_are_passed_on_as_they_are(gateway: Gateway, content_type: bytes) -> None:
    answer = gateway.invoke("echo", {"x": [1]}, content_type=content_type)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()) == (200, {"sum": 1})
    made = gateway.client.post("/v1/keys", content=b'{"name": "k"}', headers=[(b"content-type", content_type)])
    assert made.status_code == 422, "judged by what it is, not by what it is called"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/keys", "GET, POST"), ("/v1/functions/echo/invoke", "POST"), ("/v1/functions/echo", "DELETE, GET")],
)
def test_another_method_is_405_and_says_which_there_are(gateway: Gateway, path: str, allowed: str) -> None:
    answer = gateway.client.request("PUT", path, content=b"{}")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert {*answer.headers["allow"].split(", ")} >= {*allowed.split(", ")}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("samovar-timeout-ms", [b"nan", b"inf", b"-1", b"0", b"1e999", b"", b"12 34", b"\xb2"]),
        ("samovar-priority", [b"urgent", b"", b"\xff"]),
    ],
)
def test_headers_that_mean_nothing_are_400(gateway: Gateway, name: str, values: list[bytes]) -> None:
    for value in values:
        answer = gateway.client.post("/v1/functions/echo/invoke", content=b"{}", headers=[(name.encode(), value)])
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed"), value


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"], ids=["fast path", "asgi"])
def test_a_refusal_and_its_record_have_the_same_id(gateway: Gateway, expect: bytes) -> None:
    lines = b"samovar-timeout-ms: soon\r\nconnection: close\r\ncontent-length: 2\r\n"
    refused = json.loads(said(gateway, HEAD + lines + expect + b"\r\n{}").rpartition(b"\r\n\r\n")[2])
    assert refused["code"] == "malformed"
    found = gateway.client.get("/v1/functions/echo/requests", params={"status": "400"}).json()["records"]
    assert refused["request_id"] in {record["request_id"] for record in found}


@pytest.mark.parametrize("given", [b"\xff\xfe", b"a" * 5000, b"<script>", b"'; drop table", b"\xe2\x80\xae"])
def test_request_ids_come_back_or_are_replaced(gateway: Gateway, given: bytes) -> None:
    for path in ("/v1/functions/echo/invoke", "/v1/functions/nobody/invoke", "/v1/keys/nobody/rotate"):
        answer = gateway.client.post(path, content=b"{}", headers=[(b"x-request-id", given)])
        back = next(value for name, value in answer.headers.raw if name.lower() == b"x-request-id")
        assert back == given or (len(given) > 128 and 12 <= len(back) <= 128)


def test_a_replayed_request_is_a_call_of_its_own(gateway: Gateway) -> None:
    """Nothing in a request makes it good for one time only: whoever has the key may call again."""
    call = HEAD + b'x-request-id: tea\r\ncontent-length: 10\r\n\r\n{"a": "b"}'
    with gateway.connect() as connection:
        answers = []
        for _ in range(2):
            connection.sendall(call)
            answers.append(one_answer(connection))
    assert [statuses(answer) for answer in answers] == [[200], [200]]
    counts = [json.loads(answer.partition(b"\r\n\r\n")[2])["answers"] for answer in answers]
    assert counts[1] == counts[0] + 1


def test_what_other_keys_own_is_404_everywhere(gateway: Gateway) -> None:
    key = gateway.registry.keys.create("mallory", ["deploy", "invoke"], ["mine"])[1]
    with httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {key}"}) as mallory:
        wait_until(lambda: mallory.get("/v1/functions").status_code == 200)
        assert mallory.get("/v1/functions").json() == []
        for path in ("", "/openapi.json", "/logs", "/why", "/requests", "/requests/summary", "/requests/files"):
            for name in ("echo", "nobody"):
                answer = mallory.get(f"/v1/functions/{name}{path}")
                assert (answer.status_code, answer.json()["code"]) == (404, "function_not_found"), (name, path)
        for path in ("invoke", "versions", "scale", "warm", "route/canary", "route/undo", "route/promote"):
            for name in ("echo", "nobody"):
                answer = mallory.post(f"/v1/functions/{name}/{path}", content=b'{"percent": 1}')
                assert answer.status_code == 404, (name, path, answer.text)
        assert mallory.delete("/v1/functions/echo").status_code == 404
        others = gateway.registry.keys.list()[0].key_id
        assert mallory.get(f"/v1/keys/{others}").status_code == mallory.delete(f"/v1/keys/{others}").status_code == 404


# ---- many of them ------------------------------------------------------------------------------------------------


def test_ten_thousand_idle_connections_harm_nobody(valkey: Any, seaweed: Any) -> None:
    """Fewer where a process may not hold as many files: the test's own end needs as many as the gateway's."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    most = min(10_000, limit - 1500)
    for gateway in gateway_on(valkey, seaweed, 9, max_connections=most, body_timeout_s=600):
        hold_idle(gateway, most)


def hold_idle(gateway: Gateway, most: int) -> None:
    process = psutil.Process(gateway.process.pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        for number in range(most - 10):  # some are the test's own
            connection = stack.enter_context(gateway.connect())
            if number % 2:
                connection.sendall(b"GET /livez HTT")
        wait_until(lambda: process.num_fds() > most - 10)
        answer = gateway.invoke("echo", {"x": [1, 2]})
        assert (answer.status_code, answer.json()) == (200, {"sum": 3})
        assert process.memory_info().rss - before < most * 32 * 1024
        more = [stack.enter_context(gateway.connect()) for _ in range(20)]
        heard = one_answer(more[-1])
        assert (statuses(heard), code_of(heard)) == ([503], "no_capacity")
        assert b"retry-after" in heard and more[-1].recv(1) == b""
        assert gateway.invoke("echo", {"x": [1]}).status_code == 200
    wait_until(lambda: process.num_fds() < 200)
