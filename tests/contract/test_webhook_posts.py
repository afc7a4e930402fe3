"""One POST to real sockets: TLS names are verified although the address was chosen here, and no host takes for ever."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpcore
import pytest

from samovar_jobs.webhooks.guarded import Resolver, guarded_pool
from samovar_jobs.webhooks.outcome import Answer
from samovar_jobs.webhooks.post import post
from samovar_storage.jobs.webhook_urls import parse_allow
from support.receiver import Receiver, receiving

LOOPBACK = parse_allow("127.0.0.0/8")


async def here(host: str, port: int) -> list[str]:
    """Every name is this machine."""
    return ["127.0.0.1"]


async def sent(url: str, pool: httpcore.AsyncConnectionPool | None = None, total_s: float = 15.0) -> Answer:
    """Return what comes of a POST."""
    async with pool or guarded_pool(LOOPBACK, here) as pool:
        return await post(pool, LOOPBACK, url, {"webhook-id": "e"}, b"{}", total_s)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on loopback."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of `hook.test`, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hook.test -addext subjectAltName=DNS:hook.test"
    )
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@contextmanager
def tls_server(certificate: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Answer 200 over TLS; yield the port and the requests that came."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(connection, server_side=True) as stream:
                        request = b""
                        while not request.endswith(b"{}"):
                            request += stream.recv(65536)
                        seen.append(request)
                        stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], seen
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_verifies_the_name_of_the_url_at_the_checked_address(certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    with tls_server(certificate) as (port, seen):
        good = await sent(f"https://hook.test:{port}/", guarded_pool(LOOPBACK, here, trusting))
        other = await sent(f"https://other.test:{port}/", guarded_pool(LOOPBACK, here, trusting))
        unknown = await sent(f"https://hook.test:{port}/")
    assert good == Answer(status=200)
    assert (other.kind, unknown.kind) == ("silent", "silent")
    assert "hostname mismatch" in other.error.lower()
    assert "certificate verify failed" in unknown.error.lower()
    assert len(seen) == 1 and f"Host: hook.test:{port}".lower().encode() in seen[0].lower()


async def test_a_host_that_hangs_is_left_in_time(receiver: Receiver) -> None:
    assert await sent(receiver.url + "/hang", total_s=0.3) == Answer(error="no answer within 0.3 s", kind="silent")


async def test_a_host_that_drips_is_left_in_time() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"x: y\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = await sent(f"http://127.0.0.1:{listener.getsockname()[1]}/", total_s=0.5)
        stop.set()
        thread.join()
    assert answer.kind == "silent"


async def test_a_port_nobody_listens_on_and_a_name_nobody_has_are_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert (await sent(f"http://127.0.0.1:{port}/")).kind == "silent"
    resolver = Resolver()
    answer = await sent("http://nobody.invalid/", guarded_pool(LOOPBACK, resolver))
    resolver.close()
    assert answer.kind == "silent" and "nobody.invalid" in answer.error


async def test_the_next_address_is_tried_when_one_takes_no_connection(receiver: Receiver) -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    assert await sent(f"http://hook.test:{receiver.port}/", guarded_pool(LOOPBACK, two)) == Answer(status=200)


async def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await sent(receiver.url) == Answer(status=200)
