"""The methods of `inference.GRPCInferenceService` that ask once and are answered once.

| method                                                      | scope of the key
|-------------------------------------------------------------|------------------
| ServerLive · ServerReady · ServerMetadata                    | none is needed
| ModelReady · ModelMetadata · ModelConfig · ModelStatistics · RepositoryIndex | any
| ModelInfer · ModelStreamInfer (`stream.py`)                  | invoke

Messages are bytes up to here: a broken one is our error, told like any other, and tensors are not copied by what reads
them. This module does not know connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from samovar.errors import Cancelled, NotFound
from samovar_gateway.calling import apart
from samovar_gateway.health import what_is_missing
from samovar_gateway.inference import models, statistics
from samovar_gateway.inference.core import Inference
from samovar_gateway.rpc import asking, schema, translation
from samovar_gateway.rpc.exchange import Exchange
from samovar_gateway.rpc.stream import InferStreams

Deed = Callable[[Exchange, Any], Awaitable[dict[str, Any]]]


class Service:
    """One per gateway."""

    def __init__(self, core: Inference, streams: InferStreams) -> None:
        self._core = core
        self._state = core.caller.state
        self._admission = core.caller.admission
        self._streams = streams
        self._open_deeds: dict[str, Deed] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
        }
        self._deeds: dict[str, Deed] = {
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }

    def handler(self) -> Any:
        """Return what a gRPC server calls. All are streams to it: then we say when a message is read, after the key."""
        methods = {name: self._asked_once(name, deed) for name, deed in self._deeds.items()}
        methods |= {name: self._asked_once(name, deed, is_open=True) for name, deed in self._open_deeds.items()}
        methods["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._infer)
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._infer_stream)
        return grpc.method_handlers_generic_handler(schema.SERVICE, methods)

    def _exchange(self, context: Any) -> Exchange:
        return Exchange(context, self._state, self._admission.request_id({}))

    def _asked_once(self, name: str, deed: Deed, *, is_open: bool = False) -> Any:
        """Return the handler of a method whose request and answer are plain messages.

        is_open: no key is needed, and nothing is asked: the message is not read, whoever sends it.
        """
        _, answer_class = schema.methods()[name]
        request_name = f"{name}Request"

        async def handle(_requests: Any, context: Any) -> bytes:
            exchange = self._exchange(context)
            try:
                request = None
                if not is_open:
                    exchange.authenticate()
                    request = translation.parse(request_name, await exchange.read_one())
                answer: bytes = answer_class(**await deed(exchange, request)).SerializeToString()
            except (Exception, Cancelled) as error:  # noqa: BLE001 - told, and logged there
                await exchange.refuse(error)
            exchange.tell(())
            return answer

        return grpc.stream_unary_rpc_method_handler(handle)

    async def _infer(self, _requests: Any, context: Any) -> bytes:
        exchange = self._exchange(context)
        try:
            exchange.authenticate()
            return await self._inferred(exchange)
        except (Exception, Cancelled) as error:  # noqa: BLE001 - told, and logged there
            await exchange.refuse(error)

    async def _inferred(self, exchange: Exchange) -> bytes:
        message = await exchange.read_one()
        received = await apart(len(message), translation.receive, message)
        del message
        model, told_id = received.model, received.id
        asked = await asking.admit(self._core, exchange, received, exchange.request_id)
        del received  # with it goes what came: the body for the instance is a copy of its tensors
        answer = await self._core.infer(asked.ask, asked.request)
        exchange.tell(answer.headers)
        return translation.to_message(answer, model, told_id)

    async def _infer_stream(self, _requests: Any, context: Any) -> None:
        exchange = self._exchange(context)
        try:
            exchange.authenticate()
            await self._streams.serve(exchange)
        except (Exception, Cancelled) as error:  # noqa: BLE001 - told, and logged there
            await exchange.refuse(error)

    async def _server_live(self, _exchange: Exchange, _request: Any) -> dict[str, Any]:
        return {"live": True}

    async def _server_ready(self, _exchange: Exchange, _request: Any) -> dict[str, Any]:
        return {"ready": not what_is_missing(self._state)}

    async def _server_metadata(self, _exchange: Exchange, _request: Any) -> dict[str, Any]:
        return models.server_metadata()

    async def _model_ready(self, exchange: Exchange, request: Any) -> dict[str, Any]:
        try:
            await self._core.find(request.name, request.version, exchange.header)
        except NotFound:
            return {"ready": False}  # so that clients need not tell an answer from an error
        return {"ready": True}

    async def _model_metadata(self, exchange: Exchange, request: Any) -> dict[str, Any]:
        entry, found = await self._core.find(request.name, request.version, exchange.header)
        models.require_tensors(found.manifest)
        return models.model_metadata(found.manifest, entry.versions)

    async def _model_config(self, exchange: Exchange, request: Any) -> dict[str, Any]:
        _, found = await self._core.find(request.name, request.version, exchange.header)
        models.require_tensors(found.manifest)
        return {"config": models.model_config(found.manifest)}

    async def _model_statistics(self, exchange: Exchange, request: Any) -> dict[str, Any]:
        if request.name:
            return statistics.document([await self._core.find(request.name, request.version, exchange.header)])
        return statistics.document(self._core.all(exchange.header))

    async def _repository_index(self, exchange: Exchange, request: Any) -> dict[str, Any]:
        entries = [models.index_entry(version.manifest) for _, version in self._core.all(exchange.header)]
        return {"models": [one for one in entries if one["state"] == "READY" or not request.ready]}
