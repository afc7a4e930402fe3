"""The wire: whatever the chunking, the same messages; whatever the bytes, messages or ProtocolError."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import wire
from samovar.errors import ProtocolError

TO_INSTANCE: list[Any] = list(get_args(wire.ToInstance))
FROM_INSTANCE: list[Any] = list(get_args(wire.FromInstance))

_SCALARS = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False),
    float | None: st.none() | st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=200),
    bool: st.booleans(),
    list[str]: st.lists(st.text(max_size=5), max_size=3),
    dict[str, float]: st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    dict[str, str]: st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    wire.JobTag | None: st.none() | st.builds(wire.JobTag, st.text(max_size=5), st.integers(1, 9), st.integers(1, 9)),
    dict[str, Any]: st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), max_size=3),
}


def _values(kind: Any) -> st.SearchStrategy[Any]:
    return _SCALARS[kind] if kind in _SCALARS else st.sampled_from(get_args(kind))


def messages(kinds: list[Any]) -> st.SearchStrategy[Any]:
    """Any message of these kinds, every field filled."""

    def build(kind: Any) -> st.SearchStrategy[Any]:
        return st.builds(kind, **{field.name: _values(field.type) for field in msgspec.structs.fields(kind)})

    return st.one_of([build(kind) for kind in kinds])


@given(st.lists(messages(TO_INSTANCE), max_size=5), st.data())
def test_any_chunking_gives_the_same_messages(sent: list[Any], data: st.DataObject) -> None:
    stream = b"".join(wire.encode(message) for message in sent)
    decoder, received, position = wire.instance_side(), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        received += decoder.feed(stream[position : position + size])
        position += size
    assert received == sent
    assert decoder.num_pending_bytes == 0


@given(messages(FROM_INSTANCE))
def test_what_an_instance_says_arrives(message: Any) -> None:
    assert wire.caller_side().feed(wire.encode(message)) == [message]


@given(st.lists(messages(FROM_INSTANCE), min_size=1, max_size=5))
def test_joined_frames_are_the_frames_one_after_the_other(sent: list[Any]) -> None:
    buffer = bytearray()
    for message in sent:
        wire.append(buffer, message)
    assert bytes(buffer) == b"".join(wire.encode(message) for message in sent)


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_a_protocol_error(data: bytes) -> None:
    decoder = wire.instance_side(max_frame_bytes=1000)
    try:
        decoder.feed(data)
    except ProtocolError:
        return
    assert decoder.num_pending_bytes <= len(data)


@given(messages(TO_INSTANCE), st.data())
def test_a_frame_with_one_byte_changed_never_raises_anything_else(message: Any, data: st.DataObject) -> None:
    frame = bytearray(wire.encode(message))
    position = data.draw(st.integers(4, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    try:
        wire.instance_side().feed(bytes(frame))
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (struct.pack(">I", 0), "frame length 0"),
        (struct.pack(">I", 2**32 - 1), "frame length 4294967295"),
        (struct.pack(">I", wire.MAX_FRAME_BYTES + 1), "is not within"),
        (struct.pack(">I", 3) + b"\x93\xcc\xff", "malformed"),
        (struct.pack(">I", 1) + b"\xc1", "malformed"),
        (struct.pack(">I", 2000) + b"\x91" * 2000, "malformed"),
        (wire.encode(wire.Started(1)), "malformed"),
    ],
    ids=["empty", "largest", "oversized", "truncated inside", "reserved byte", "nested deep", "wrong direction"],
)
def test_a_bad_frame_says_why(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        wire.instance_side().feed(frame)


def test_an_oversized_length_is_refused_before_its_body_arrives() -> None:
    decoder = wire.instance_side(max_frame_bytes=100)
    decoder.feed(struct.pack(">I", 101)[:2])
    with pytest.raises(ProtocolError, match=r"1\.\.100"):
        decoder.feed(struct.pack(">I", 101)[2:])


def test_a_half_frame_is_pending() -> None:
    decoder = wire.instance_side()
    assert decoder.feed(wire.encode(wire.Cancel(7))[:-1]) == []
    assert decoder.num_pending_bytes > 0


def test_a_message_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 50)
    buffer = bytearray(b"kept")
    with pytest.raises(ProtocolError, match="larger than 50"):
        wire.append(buffer, wire.Chunk(1, bytes(100)))
    assert buffer == b"kept"


def test_tags_are_unique_and_each_message_is_documented_in_one_direction() -> None:
    tags = [kind.__struct_config__.tag for kind in TO_INSTANCE + FROM_INSTANCE]
    assert len(set(tags)) == len(tags)
    assert all(tag < 32 for tag in tags[: len(TO_INSTANCE)]), "below 32 travels to the instance"


@pytest.mark.parametrize("kind", TO_INSTANCE + FROM_INSTANCE)
def test_a_new_field_of_a_newer_peer_is_ignored(kind: Any) -> None:
    """Fields are only ever appended: an old reader drops what it does not know."""
    decoder = wire.instance_side() if kind in TO_INSTANCE else wire.caller_side()
    message = kind(**{field.name: _sample(field.type) for field in msgspec.structs.fields(kind)})
    array = msgspec.msgpack.decode(wire.encode(message)[4:])
    body = msgspec.msgpack.encode([*array, "from the future"])
    assert decoder.feed(struct.pack(">I", len(body)) + body) == [message]


def _sample(kind: Any) -> Any:
    samples: dict[Any, Any] = {int: 1, float: 1.0, float | None: 1.0, str: "a", bytes: b"b", bool: True}
    samples[wire.JobTag | None] = wire.JobTag("a", 1, 1)
    if kind in samples:
        return samples[kind]
    return get_args(kind)[0] if kind not in _SCALARS else ([] if kind == list[str] else {})
