"""Requests and answers of the Open Inference Protocol, free of any encoding. This module does not know functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samovar.errors import RequestError
from samovar.tensor_codec import TensorValue

MAX_TIMEOUT_US = (1 << 63) - 1
_REFUSED = {
    "sequence_id": "there are no sequences here: every request stands for itself",
    "sequence_start": "there are no sequences here: every request stands for itself",
    "sequence_end": "there are no sequences here: every request stands for itself",
    "priority": "send the header Samovar-Priority (high, normal, low) instead",
}


@dataclass(slots=True)
class InferRequest:
    """What a client wants inferred. inputs: each checked by `tensor_codec.check`. outputs: names of those it wants,
    empty = all. parameters: of the whole request, those of the encoding taken out."""

    inputs: Sequence[TensorValue]
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def take_inputs(self) -> Sequence[TensorValue]:
        """Return the inputs and keep them no more: the bytes that they are views on need not last as long as the
        call."""
        inputs, self.inputs = self.inputs, ()
        return inputs

    def timeout_s(self) -> float | None:
        """Return the time that the parameters give it, None if they do not say. Raises: RequestError for a parameter
        that means nothing here: none is passed over."""
        for name in self.parameters:
            if name != "timeout":
                why = _REFUSED.get(name, "it means nothing here")
                raise RequestError(f"the parameter {name[:100]!r} is not possible: {why}", param=name[:100])
        timeout_us = self.parameters.get("timeout", 0)
        if type(timeout_us) is not int or not 0 <= timeout_us <= MAX_TIMEOUT_US:
            raise RequestError("the parameter 'timeout' is a number of microseconds, of 63 bits", param="timeout")
        return timeout_us / 1e6 or None


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """One answer, or one of several of a stream. version: that gave it, as edges print it. headers: what an answer
    says beside it, such as Server-Timing, by HTTP name."""

    outputs: Sequence[TensorValue]
    version: str
    headers: Sequence[tuple[bytes, bytes]] = ()

    @property
    def num_bytes(self) -> int:
        """What the contents of its outputs take."""
        return sum(len(output.data) for output in self.outputs)
