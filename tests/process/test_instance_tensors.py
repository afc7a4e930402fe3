"""Bodies of tensors in a real instance: torch, streams, coroutines, and callers who want what it cannot give."""

from __future__ import annotations

from typing import Any

import pytest

from samovar import wire
from samovar.tensor_codec import MEDIA_TYPE, TensorValue, decode, encode
from samovar.tensor_plain import pack, unpack
from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process
BOTH: dict[str, Any] = {"content_type": MEDIA_TYPE, "accept": MEDIA_TYPE}


def value(name: str, datatype: str, flat: list[Any], *shape: int) -> TensorValue:
    return TensorValue(name, datatype, shape, pack(name, datatype, flat))


def plain(body: bytes) -> dict[str, Any]:
    """Return the elements of each tensor of a body, by name."""
    return {one.name: unpack(one) for one in decode(body)}


def test_tensors_of_torch(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "torch_tensors")
    caller = instance.connect()
    for flat in ([1.0, -2.5, 3.0], []):
        given = [value("x", "BF16", flat, len(flat)), value("more", "FP32", [0.0] * 6, 2, 3)]
        caller.invoke(encode(given), **BOTH)
        result = caller.expect(wire.Result)
        assert result.content_type == MEDIA_TYPE
        assert plain(result.body) == {"doubled": [2 * one for one in flat], "shape": [2, 3]}
    assert "Warning" not in instance.log_text(), "torch warns of buffers that cannot be written"
    assert [one.datatype for one in decode(result.body)] == ["BF16", "INT64"]


def test_each_item_of_a_stream_is_a_body(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "countdown_tensors").connect()
    caller.invoke(encode([value("n", "INT64", [2], 1)]), accept_stream=True, **BOTH)
    assert [plain(caller.expect(wire.Chunk).body) for _ in range(2)] == [
        {"number": [2], "word": [b"teatea"]},
        {"number": [1], "word": [b"tea"]},
    ]
    caller.expect(wire.End)


def test_what_it_takes_and_what_it_gives_are_two_things(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "echo_sum").connect()
    body = encode([value("values", "FP32", [1.0, 2.0], 2)])
    caller.invoke(body, content_type=MEDIA_TYPE)
    result = caller.expect(wire.Result)
    assert result.content_type == "application/json" and b"3" in result.body
    caller.invoke({"values": [1, 2]}, accept=MEDIA_TYPE)
    assert [3.0] in plain(caller.expect(wire.Result).body).values()


def test_wrong_bodies_fail_alone(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "row_vectors").connect()
    assert refused(caller, b"tea").code == "invalid_input"
    assert refused(caller, encode([value("text", "BYTES", ["a", "b"], 2)])).detail.startswith("text: shape")
    assert refused(caller, encode([])).detail == "text: the input is missing"
    caller.invoke(encode([value("text", "BYTES", ["four"])]), **BOTH)
    assert plain(caller.expect(wire.Result).body) == {"vector": [4.0] * 3, "batch_size": [1]}
    unlike = zygote.start(FUNCTIONS / "plain_dicts").connect()
    assert refused(unlike, encode([])).status == 400


def refused(caller: Caller, body: bytes) -> wire.Failure:
    caller.invoke(body, **BOTH)
    return caller.expect(wire.Failure)
