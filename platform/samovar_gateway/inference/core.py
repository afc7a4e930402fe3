"""A request of the Open Inference Protocol, whichever way it came: admit, ask the function, give the answer.

    admit ─► the ask, its version pinned        infer  ─► one answer
             (existence, key, deadline)         stream ─► an answer for each item

A function that sleeps is a model that is ready: its existence comes from the registry. Tensors travel to instances and
back as they came (`samovar.tensor_codec`); of a batch handler every row is an ask of its own. Errors are ours: how they
are told is the edge's business. This module does not know HTTP or gRPC.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from copy import copy

from samovar import tensor_codec
from samovar.errors import NotFound, ProtocolError, RequestError, SamovarError
from samovar.spec import Manifest, streams
from samovar.tensor_codec import TensorValue
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Version
from samovar_dispatch.functions import FunctionEntry
from samovar_dispatch.stream import ChunkStream
from samovar_gateway.admission import answer_headers
from samovar_gateway.calling import Caller, Header, abandon, apart, release
from samovar_gateway.inference import bodies as bodies_
from samovar_gateway.inference import models
from samovar_gateway.inference.messages import InferAnswer, InferRequest
from samovar_gateway.sweep import Receive

_OWN_HEADERS = (b"content-type", b"content-length")


class Inference:
    """One per edge. protocol: its, one of `ask.PROTOCOLS`."""

    def __init__(self, caller: Caller, protocol: str) -> None:
        self.caller = caller
        self._protocol = protocol

    async def find(self, name: str, version: str, header: Header) -> tuple[FunctionEntry, Version]:
        """Return function and version of a model, for who may see it. version: "" = the one with the most traffic.

        Raises: Unauthenticated, FunctionNotFound, NotFound.
        """
        state = self.caller.state
        state.keys.authenticate(header.get(b"authorization")).require_sight(name)
        entry = state.functions.entries.get(name)
        if entry is None and await state.mirror.find(name):
            entry = state.functions.entries.get(name)
        if entry is None:
            raise await self.caller.unknown(name, header)
        return entry, (_named(entry, version) if version else entry.main)

    def all(self, header: Header) -> list[tuple[FunctionEntry, Version]]:
        """Return every version that routes name, of the functions that the caller's key covers. Raises:
        Unauthenticated."""
        state = self.caller.state
        principal = state.keys.authenticate(header.get(b"authorization"))
        seen = [entry for name, entry in sorted(state.functions.entries.items()) if principal.sees(name)]
        return [(entry, version) for entry in seen for _, version in sorted(entry.versions.items())]

    async def admit(
        self, name: str, version: str, header: Header, request_id: bytes, timeout_s: float | None = None
    ) -> Ask:
        """Return the ask for a model; the version that answers all of it is chosen now.

        Args:
            version: its number, "" = as the route says. header: by lower-case name: `authorization`, and whatever else
                of an invocation's headers. timeout_s: of the caller, beside the header's and the function's own.
        Raises: as `Caller.admit`; noted: NotFound if the route has no such version, RequestError if it has no tensors.
        """
        ask = await self.caller.admit(name, "POST", header, request_id, self._protocol)
        ask.content_type = ask.accept = tensor_codec.MEDIA_TYPE
        shorten(ask, timeout_s)
        try:
            ask.version = _named(ask.entry, version) if version else ask.entry.choose(ask, random.random())  # noqa: S311
            models.require_tensors(ask.version.manifest)
        except SamovarError as error:
            raise self.caller.state.journey.refuse(ask, error) from None
        return ask

    async def infer(self, ask: Ask, request: InferRequest, receive: Receive | None = None) -> InferAnswer:
        """Return the answer to a request that was admitted.

        receive: ASGI's; without it, cancelling the task that waits is how a caller leaves.
        Raises: SamovarError; Cancelled.
        """
        manifest = _manifest_of(ask)
        if streams(manifest):
            told = f"{manifest.name} answers with a stream, item by item: ask for one (infer_stream, generate_stream)"
            raise self.caller.state.journey.refuse(ask, RequestError(told))
        bodies = await self._bodies(ask, request)
        asks = [ask, *(copy(ask) for _ in bodies[1:])]
        given = await self._given(asks, bodies, receive)
        for one in asks:
            release(one)
        answers = [(result.content_type, result.body) for _, result in given]
        outputs = await apart(_size(answers), bodies_.outputs_of, manifest, answers, request.outputs)
        return _answer(ask, *given[0], outputs)

    async def stream(
        self, ask: Ask, request: InferRequest, receive: Receive | None = None
    ) -> AsyncGenerator[InferAnswer]:
        """Yield an answer for each item of a generator, or the one answer of any other function.

        Raises: as `infer`, also in the middle. Whoever stops reading closes it: then the function stops, too.
        """
        manifest = _manifest_of(ask)
        if not streams(manifest):
            yield await self.infer(ask, request, receive)
            return
        body = (await self._bodies(ask, request))[0]
        try:
            call, outcome = await self.caller.outcome(ask, body, receive)
            if not isinstance(outcome, ChunkStream):
                answers = [(outcome.content_type, outcome.body)]
                yield _answer(ask, call, outcome, bodies_.outputs_of(manifest, answers, request.outputs))
                return
            with self.caller.watching(ask, receive):
                async for chunk in outcome:
                    answers = [(tensor_codec.MEDIA_TYPE, chunk)]
                    outputs = await apart(len(chunk), bodies_.outputs_of, manifest, answers, request.outputs)
                    yield InferAnswer(outputs, _label(ask, call))
        finally:
            abandon(ask)

    async def _bodies(self, ask: Ask, request: InferRequest) -> list[bytes]:
        """Return the body of each ask of a request, and note what is refused here."""
        inputs = request.take_inputs()
        num_bytes = sum(len(tensor.data) for tensor in inputs)
        try:
            shorten(ask, request.timeout_s())
            return await apart(num_bytes, bodies_.bodies_of, _manifest_of(ask), inputs, request.outputs)
        except SamovarError as error:
            raise self.caller.state.journey.refuse(ask, error) from None

    async def _given(
        self, asks: Sequence[Ask], bodies: Sequence[bytes], receive: Receive | None
    ) -> list[tuple[Call | None, Result]]:
        if len(asks) == 1:
            given = [await self.caller.outcome(asks[0], bodies[0], receive)]
        else:
            given = await self.caller.outcomes(asks, bodies, receive)
        found = []
        for call, outcome in given:
            if isinstance(outcome, ChunkStream):
                raise ProtocolError("the instance streamed the answer of a function that does not stream")
            found.append((call, outcome))
        return found


def shorten(ask: Ask, timeout_s: float | None) -> None:
    """Bring the deadline of an ask forward to `timeout_s` after it arrived; None and later ones leave it."""
    if timeout_s is not None:
        ask.deadline_s = min(ask.deadline_s, ask.arrived_s + timeout_s)


def _named(entry: FunctionEntry, version: str) -> Version:
    found = entry.versions.get(int(version)) if version.isdecimal() and len(version) < 10 else None
    if found is None:
        known = ", ".join(map(str, sorted(entry.versions)))
        raise NotFound(f"{entry.record.name} has no version {version[:20]!r} in its route; it has {known}")
    return found


def _manifest_of(ask: Ask) -> Manifest:
    assert ask.version is not None, "admit pins the version"
    return ask.version.manifest


def _size(answers: Sequence[tuple[str, bytes]]) -> int:
    return sum(len(body) for _, body in answers)


def _answer(ask: Ask, call: Call | None, result: Result, outputs: list[TensorValue]) -> InferAnswer:
    headers = answer_headers(ask, call, result)
    kept = [header for header in headers if header[0] not in _OWN_HEADERS]
    return InferAnswer(outputs, _label(ask, call), kept)


def _label(ask: Ask, call: Call | None) -> str:
    version = call.version if call is not None else ask.version
    return version.label.decode() if version is not None else ""
