"""Bad peers of real processes: whatever one connection sends, the others go on."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samovar import wire
from samovar_instance.control import HELLO_TIMEOUT_S
from support.instance_driver import FUNCTIONS, TOKEN, Caller, Instance, Zygote, connect
from support.waiting import wait_until

pytestmark = pytest.mark.process

HELLO = wire.encode(wire.Hello(wire.PROTOCOL_VERSION, TOKEN, "gateway"))
INVOKE = wire.encode(wire.Invoke(1, b'{"values": [1]}', 1000.0))


@pytest.fixture(params=["blank", "ready", "zygote"])
def address(request: pytest.FixtureRequest, zygote: Zygote) -> str:
    """The address of a process in each state that listens."""
    if request.param == "zygote":
        return f"unix:{zygote.socket_path}"
    instance = zygote.fork() if request.param == "blank" else zygote.start(FUNCTIONS / "echo_sum")
    return instance.address


@pytest.fixture(scope="module")
def module_instance(session_zygote: Zygote) -> Iterator[Instance]:
    """One instance for all examples of a fuzz test."""
    instance = session_zygote.start(FUNCTIONS / "echo_sum")
    session_zygote.instances.remove(instance)
    yield instance
    instance.kill()
    for caller in instance.callers:
        caller.close()


def say(address: str, data: bytes, *, then_close: bool = False) -> list[Any]:
    """Send raw bytes on a connection of its own; return every frame until it is closed."""
    with contextlib.closing(connect(address)) as sock:
        sock.settimeout(60)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
            if then_close:
                sock.shutdown(socket.SHUT_WR)
        decoder, frames = wire.caller_side(), []
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                frames += decoder.feed(data)
        return frames


BAD = {
    "no hello": (wire.encode(wire.Cancel(1)), "protocol"),
    "wrong version": (wire.encode(wire.Hello(99, TOKEN, "gateway")), "version"),
    "garbage": (b"GET / HTTP/1.1\r\n\r\n" * 10, "protocol"),
    "empty frame": (struct.pack(">I", 0), "protocol"),
    "oversized": (struct.pack(">I", 2**31), "protocol"),
    "large before hello": (struct.pack(">I", 10_000_000), "protocol"),
    "wrong direction": (wire.encode(wire.Started(1)), "protocol"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_peer_is_told_why_and_closed(address: str, name: str) -> None:
    data, reason = BAD[name]
    frames = say(address, data)
    assert [type(frame) for frame in frames] == [wire.Goodbye]
    assert frames[0].reason == reason
    token = "" if address.endswith("zygote.sock") else TOKEN
    Caller(address, token, "manager").close()


def test_peers_that_stay_silent_are_closed(zygote: Zygote) -> None:
    addresses = [f"unix:{zygote.socket_path}", zygote.fork().address, zygote.start(FUNCTIONS / "echo_sum").address]
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(contextlib.closing(connect(address))) for address in addresses]
        for sock in silent:
            sock.settimeout(3 * HELLO_TIMEOUT_S)
            (goodbye,) = wire.caller_side().feed(sock.recv(65536))
            assert isinstance(goodbye, wire.Goodbye) and goodbye.reason == "hello"


def test_a_wrong_token_is_refused(zygote: Zygote) -> None:
    for instance in (zygote.fork(), zygote.start(FUNCTIONS / "echo_sum")):
        frames = say(instance.address, wire.encode(wire.Hello(wire.PROTOCOL_VERSION, TOKEN + "!", "manager")))
        assert [frame.reason for frame in frames] == ["token"]


def test_a_gateway_cannot_give_orders(zygote: Zygote) -> None:
    for instance in (zygote.fork(), zygote.start(FUNCTIONS / "echo_sum")):
        frames = say(instance.address, HELLO + wire.encode(wire.Drain(1)))
        assert [type(frame) for frame in frames] == [wire.Welcome, wire.Goodbye]
        assert instance.is_alive()


def test_a_half_frame_at_the_end_is_noticed_and_forgotten(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "echo_sum")
    say(instance.address, HELLO + INVOKE[:-3], then_close=True)
    wait_until(lambda: "in the middle of a frame" in instance.log_text())
    assert instance.connect().call({"values": [1]}) == 1


def test_an_id_in_flight_twice_ends_the_connection(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    slow = wire.encode(wire.Invoke(1, b'{"deed": "sleep", "amount": 0.2}', 5000.0))
    frames = say(instance.address, HELLO + slow + slow)
    assert isinstance(frames[-1], wire.Goodbye) and "in flight already" in frames[-1].detail


def test_fork_without_descriptors_is_refused(zygote: Zygote) -> None:
    data = wire.encode(wire.Hello(wire.PROTOCOL_VERSION, "", "manager")) + wire.encode(wire.Fork("x", TOKEN))
    frames = say(f"unix:{zygote.socket_path}", data)
    assert isinstance(frames[-1], wire.Goodbye) and "descriptors" in frames[-1].detail
    assert zygote.fork().control().welcome.state == "blank"


def test_descriptors_nobody_asked_for_are_closed(zygote: Zygote) -> None:
    before = len(os.listdir(f"/proc/{zygote.process.pid}/fd"))
    peer = Caller(f"unix:{zygote.socket_path}", "", "manager")
    with open(os.devnull) as null:
        peer.send(wire.Preload([]), fds=[null.fileno()] * 5)
        peer.expect(wire.Preloaded)
        peer.close()
    wait_until(lambda: len(os.listdir(f"/proc/{zygote.process.pid}/fd")) == before)


def test_descriptors_cannot_be_hoarded(zygote: Zygote) -> None:
    peer = Caller(f"unix:{zygote.socket_path}", "", "manager")
    with open(os.devnull) as null, pytest.raises((EOFError, ConnectionError, AssertionError)):
        for _ in range(20):
            peer.send(wire.Preload([]), fds=[null.fileno()] * 10)
            peer.expect(wire.Preloaded)
    peer.close()
    assert zygote.fork().control().welcome.state == "blank"


def test_a_caller_that_reads_nothing_harms_nobody(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    deaf, other = instance.connect(), instance.connect()
    for _ in range(20):
        deaf.invoke({"deed": "big", "amount": 1e6})
    assert other.call({"deed": "nothing"}) == "done"
    assert len(deaf.answers(20)) == 20, "and it gets everything once it reads"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.sampled_from([b"", HELLO, HELLO + INVOKE]),
    junk=st.binary(max_size=200) | st.binary(max_size=50).map(lambda body: struct.pack(">I", len(body)) + body),
    cut=st.integers(0, 100),
)
def test_any_bytes_harm_nobody_else(module_instance: Instance, prefix: bytes, junk: bytes, cut: int) -> None:
    if not module_instance.callers:
        module_instance.connect()
    witness = module_instance.callers[0]
    number = witness.invoke({"values": [1, 2]})
    data = prefix + junk
    say(module_instance.address, data[: len(data) - cut] if cut < len(data) else data, then_close=True)
    result = witness.expect(wire.Result)
    assert (result.id, result.body) == (number, b"3.0")


@settings(max_examples=40, deadline=None)
@given(junk=st.binary(min_size=1, max_size=100), introduced=st.booleans())
def test_any_bytes_leave_the_zygote_able_to_fork(session_zygote: Zygote, junk: bytes, introduced: bool) -> None:
    hello = wire.encode(wire.Hello(wire.PROTOCOL_VERSION, "", "manager")) if introduced else b""
    say(f"unix:{session_zygote.socket_path}", hello + junk, then_close=True)
    session_zygote.control.send(wire.Preload([]))
    assert session_zygote.control.expect(wire.Preloaded).failed == {}
