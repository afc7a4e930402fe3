"""The routes of the Open Inference Protocol, below /v2: as ASGI, without a router, as the invoke route is.

| route                                                   | method | scope of the key
|---------------------------------------------------------|--------|-------------------
| /v2 · /v2/health/live · /v2/health/ready                | GET    | none is needed
| /v2/repository/index · /v2/models/stats                 | POST, GET | any
| /v2/models/{name}[/versions/{v}]                        | GET    | any
| …/config · …/ready · …/stats                            | GET    | any
| …/infer · …/infer_stream · …/generate · …/generate_stream | POST | invoke

Errors are `{"error": TEXT}` with the status that every route of ours gives them. This module does not know tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar.types import HTTPScope, Receive, Send

from samovar.errors import Cancelled, MethodNotAllowed, NotFound, RequestError, SamovarError, Unavailable
from samovar.tensor_codec import Contents
from samovar_dispatch.ask import Ask
from samovar_gateway import problems
from samovar_gateway.admission import CLOSE
from samovar_gateway.body import discard
from samovar_gateway.calling import Header, apart
from samovar_gateway.health import what_is_missing
from samovar_gateway.inference import json_form, models, statistics
from samovar_gateway.inference.core import Inference
from samovar_gateway.inference.json_form import Wishes
from samovar_gateway.inference.messages import InferRequest
from samovar_gateway.inference.rest_stream import AnswerStream, Writer
from samovar_gateway.invoke import UNREAD_STATUSES

log = logging.getLogger(__name__)

PREFIX = "/v2"
JSON_LENGTH = b"inference-header-content-length"
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")


class InferenceRoutes:
    """The ASGI handler of everything below /v2."""

    def __init__(self, core: Inference) -> None:
        self._core = core
        self._state = core.caller.state
        self._admission = core.caller.admission
        self._deeds: dict[str, Callable[[_Exchange, Ask], Awaitable[None]]] = {
            "infer": self._infer,
            "infer_stream": self._infer_stream,
            "generate": self._generate,
            "generate_stream": self._generate_stream,
        }

    def serves(self, path: str) -> bool:
        """Return whether a path is one of these routes', or would be."""
        return path.startswith(PREFIX) and path[len(PREFIX) : len(PREFIX) + 1] in ("", "/")

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes the protocol's own."""
        header = dict(scope["headers"])
        exchange = _Exchange(header, receive, send, self._admission.request_id(header))
        try:
            await self._route(scope["method"], scope["path"][len(PREFIX) + 1 :], exchange)
        except SamovarError as error:
            await self._refuse(error, exchange)
        except Cancelled:
            return  # nobody is there to be told
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"][:200])
            await self._refuse(SamovarError("an error inside the gateway; its log says more"), exchange)

    async def _route(self, method: str, path: str, exchange: _Exchange) -> None:
        match path.split("/"):
            case ["models", name, "versions", version, *deed]:
                await self._model(method, name, version, "/".join(deed), exchange)
            case ["models", "stats"]:
                _require(method, "GET")
                await exchange.tell(statistics.document(self._core.all(exchange.header)))
            case ["models", name, *deed]:
                await self._model(method, name, "", "/".join(deed), exchange)
            case ["repository", "index"]:
                _require(method, "POST")
                found = self._core.all(exchange.header)
                await exchange.tell([models.index_entry(version.manifest) for _, version in found])
            case _:
                await self._server(method, path, exchange)

    async def _server(self, method: str, path: str, exchange: _Exchange) -> None:
        if path not in ("", "health/live", "health/ready"):
            raise NotFound(f"no route {PREFIX}/{path[:200]}")
        _require(method, "GET")
        if path == "":
            await exchange.tell(models.server_metadata())
            return
        missing = what_is_missing(self._state) if path == "health/ready" else []
        if missing:
            raise Unavailable(f"not ready: {', '.join(missing)}", retry_after_s=1.0)
        await exchange.tell({path.removeprefix("health/"): True})

    async def _model(self, method: str, name: str, version: str, deed: str, exchange: _Exchange) -> None:
        act = self._deeds.get(deed)
        if act is None and deed not in ("", "config", "ready", "stats"):
            raise NotFound(f"no route {PREFIX}/models/…/{deed[:200]}")
        _require(method, "POST" if act is not None else "GET")
        if act is not None:
            await act(exchange, await self._core.admit(name, version, exchange.header, exchange.request_id))
            return
        entry, found = await self._core.find(name, version, exchange.header)
        if deed == "stats":
            await exchange.tell(statistics.document([(entry, found)]))
        elif deed == "ready":
            await exchange.tell({"name": name, "ready": True})
        else:
            models.require_tensors(found.manifest)
            is_config, manifest = deed == "config", found.manifest
            told = models.model_config(manifest) if is_config else models.model_metadata(manifest, entry.versions)
            await exchange.tell(told)

    async def _infer(self, exchange: _Exchange, ask: Ask) -> None:
        request, wishes = await self._read(exchange, ask)
        answer = await self._core.infer(ask, request, exchange.receive)
        name = ask.entry.record.name
        parts, json_length = await apart(answer.num_bytes, json_form.write, answer, name, wishes)
        headers = [_JSON if json_length is None else _BINARY, *answer.headers]
        if json_length is not None:
            headers.append((JSON_LENGTH, b"%d" % json_length))
        await exchange.send_parts(headers, parts)

    async def _infer_stream(self, exchange: _Exchange, ask: Ask) -> None:
        request, wishes = await self._read(exchange, ask)
        if wishes.is_binary or any(wishes.binary.values()):
            told = "a stream of events carries JSON: ask without binary_data"
            raise self._state.journey.refuse(ask, RequestError(told, param="binary_data"))
        name = ask.entry.record.name
        await self._events(exchange, ask, request, lambda answer: json_form.write(answer, name, wishes)[0][0])

    async def _generate(self, exchange: _Exchange, ask: Ask) -> None:
        request, wishes = await self._read_fields(exchange, ask)
        answer = await self._core.infer(ask, request, exchange.receive)
        body = await apart(answer.num_bytes, json_form.write_fields, answer, ask.entry.record.name, wishes)
        await exchange.send_parts([_JSON, *answer.headers], [body])

    async def _generate_stream(self, exchange: _Exchange, ask: Ask) -> None:
        request, wishes = await self._read_fields(exchange, ask)
        name = ask.entry.record.name
        await self._events(exchange, ask, request, lambda answer: json_form.write_fields(answer, name, wishes))

    async def _read(self, exchange: _Exchange, ask: Ask) -> tuple[InferRequest, Wishes]:
        body = await self._body(exchange, ask)
        try:
            return await apart(len(body), json_form.read, body, exchange.header.get(JSON_LENGTH))
        except SamovarError as error:
            raise self._state.journey.refuse(ask, error) from None

    async def _read_fields(self, exchange: _Exchange, ask: Ask) -> tuple[InferRequest, Wishes]:
        body = await self._body(exchange, ask)
        assert ask.version is not None, "admit pins the version"
        manifest = ask.version.manifest
        try:
            is_batch = manifest.batch is not None
            return await apart(len(body), json_form.read_fields, body, manifest.inputs, is_batch=is_batch)
        except SamovarError as error:
            raise self._state.journey.refuse(ask, error) from None

    async def _body(self, exchange: _Exchange, ask: Ask) -> bytes:
        body = await self._core.caller.read(exchange.header, exchange.receive, ask)
        exchange.is_read = True
        return body

    async def _events(self, exchange: _Exchange, ask: Ask, request: InferRequest, write: Writer) -> None:
        """Send an event for each answer; what fails before anything was sent keeps its status."""
        stream = AnswerStream(self._state, ask, exchange.send)
        try:
            await stream.run(self._core.stream(ask, request, exchange.receive), write)
        finally:
            exchange.has_begun = stream.is_open

    async def _refuse(self, error: SamovarError, exchange: _Exchange) -> None:
        self._state.problems[error.code] += 1
        if exchange.has_begun:
            return  # what is there is half an answer already: the connection closes
        headers = [_JSON, *problems.headers(error)[1:]]
        is_unread = error.status in UNREAD_STATUSES and not exchange.is_read
        body = msgspec.json.encode({"error": error.detail})
        await exchange.send_parts([*headers, CLOSE] if is_unread else headers, [body], error.status)
        if is_unread:
            await discard(exchange.receive)


class _Exchange:
    """One request and its response. is_read: its body came. has_begun: the response did."""

    def __init__(self, header: Header, receive: Receive, send: Send, request_id: bytes) -> None:
        self.header = header
        self.receive = receive
        self.request_id = request_id
        self.is_read = self.has_begun = False
        self.send: Callable[[Any], Awaitable[None]] = send

    async def tell(self, document: Any) -> None:
        """Answer with JSON."""
        await self.send_parts([_JSON], [msgspec.json.encode(document)])

    async def send_parts(self, headers: problems.Headers, parts: list[Contents], status: int = 200) -> None:
        """Send a response whose body is `parts`, none of them copied."""
        length = sum(map(len, parts))
        await self._begin([*headers, (b"content-length", b"%d" % length)], status)
        for place, part in enumerate(parts):
            await self.send({"type": "http.response.body", "body": part, "more_body": place < len(parts) - 1})

    async def _begin(self, headers: problems.Headers, status: int) -> None:
        self.has_begun = True
        names = {name for name, _ in headers}
        more = [] if b"x-request-id" in names else [(b"x-request-id", self.request_id)]
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})


def _require(method: str, wanted: str) -> None:
    if method != wanted:
        raise MethodNotAllowed(f"send it as {wanted}", allow=[wanted])
