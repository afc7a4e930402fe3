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

import msgspec

from samovar import tensor_codec
from samovar.errors import InvalidInput, NotFound, ProtocolError, RequestError, SamovarError
from samovar.spec import Manifest
from samovar.tensor_codec import TensorValue
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Version
from samovar_dispatch.functions import FunctionEntry
from samovar_dispatch.stream import ChunkStream
from samovar_gateway.admission import answer_headers
from samovar_gateway.calling import Caller, Header, abandon, release
from samovar_gateway.inference import models, rows
from samovar_gateway.inference.messages import InferAnswer, InferRequest
from samovar_gateway.sweep import Receive

_OWN_HEADERS = (b"content-type", b"content-length")


class Inference:
    """One per gateway, for all its edges."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

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
        ask = await self.caller.admit(name, "POST", header, request_id)
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
        if models.streams(manifest):
            told = f"{manifest.name} answers with a stream, item by item: ask for one (infer_stream, generate_stream)"
            raise self.caller.state.journey.refuse(ask, RequestError(told))
        bodies = self._bodies(ask, request)
        asks = [ask, *(copy(ask) for _ in bodies[1:])]
        given = await self.caller.outcomes(asks, bodies, receive)
        for one in asks:
            release(one)
        answers = [_tensors(outcome, manifest) for _, outcome in given]
        outputs = rows.stack(answers) if manifest.batch is not None else answers[0]
        return _answer(ask, given[0][0], given[0][1], models.wanted(outputs, request.outputs))

    async def stream(
        self, ask: Ask, request: InferRequest, receive: Receive | None = None
    ) -> AsyncGenerator[InferAnswer]:
        """Yield an answer for each item of a generator, or the one answer of any other function.

        Raises: as `infer`, also in the middle. Whoever stops reading closes it: then the function stops, too.
        """
        manifest = _manifest_of(ask)
        if not models.streams(manifest):
            yield await self.infer(ask, request, receive)
            return
        body = self._bodies(ask, request)[0]
        try:
            call, outcome = await self.caller.outcome(ask, body, receive)
            if not isinstance(outcome, ChunkStream):
                yield _answer(ask, call, outcome, models.wanted(_tensors(outcome, manifest), request.outputs))
                return
            with self.caller.watching(ask, receive):
                async for chunk in outcome:
                    outputs = models.wanted(tensor_codec.decode(chunk), request.outputs)
                    yield InferAnswer(outputs, _label(ask, call))
        finally:
            abandon(ask)

    def _bodies(self, ask: Ask, request: InferRequest) -> list[bytes]:
        """Return the body of each ask of a request, and note what is refused here."""
        manifest, inputs = _manifest_of(ask), request.take_inputs()
        try:
            shorten(ask, request.timeout_s())
            models.check_outputs(manifest, request.outputs)
            tensor_codec.check_inputs(inputs, manifest.inputs, models.required(manifest))
            if manifest.batch is None:
                return [tensor_codec.encode(inputs)]
            items = rows.split(inputs, rows.num_rows(inputs))
        except SamovarError as error:
            raise self.caller.state.journey.refuse(ask, error) from None
        return [tensor_codec.encode(item) for item in items]


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


def _tensors(outcome: Result | ChunkStream, manifest: Manifest) -> Sequence[TensorValue]:
    """Return the outputs of one answer; a fallback's, which is JSON, in the form of `manifest`."""
    if isinstance(outcome, ChunkStream):
        raise ProtocolError("the instance streamed the answer of a function that does not stream")
    try:
        if outcome.content_type == tensor_codec.MEDIA_TYPE:
            return tensor_codec.decode(outcome.body)
        return models.from_plain(msgspec.json.decode(outcome.body), manifest)
    except (InvalidInput, msgspec.DecodeError) as error:
        raise ProtocolError(f"the answer is no tensors: {error}") from None


def _answer(ask: Ask, call: Call | None, outcome: Result | ChunkStream, outputs: list[TensorValue]) -> InferAnswer:
    headers = answer_headers(ask, call, outcome) if isinstance(outcome, Result) else []
    kept = [header for header in headers if header[0] not in _OWN_HEADERS]
    return InferAnswer(outputs, _label(ask, call), kept)


def _label(ask: Ask, call: Call | None) -> str:
    version = call.version if call is not None else ask.version
    return version.label.decode() if version is not None else ""
