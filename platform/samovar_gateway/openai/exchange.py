"""One request of OpenAI's API, from its head to its last byte: what all routes have in common.

    authenticate → body → fields → model → ask → whatever the route does → answer, or an error object

The key comes first, so that nobody's body is read for nothing; the function is in the body, so it comes last. What is
wrong with a request whose function is known is noted as that function's. This module does not know the routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from copy import copy
from typing import TypeVar

from litestar.types import HTTPScope, Receive, Send

from samovar.errors import FunctionNotFound, MethodNotAllowed, SamovarError, UnsupportedEncoding
from samovar.values import NAME_PATTERN
from samovar_dispatch.ask import OPENAI, Ask
from samovar_gateway.admission import CLOSE
from samovar_gateway.auth import Principal
from samovar_gateway.body import discard
from samovar_gateway.calling import Caller, apart
from samovar_gateway.invoke import UNREAD_STATUSES
from samovar_gateway.openai import fields, models, problems

T = TypeVar("T")


class Exchange:
    """caller: makes invocations. names: what the client called fields that have another name inside."""

    def __init__(self, caller: Caller, scope: HTTPScope, receive: Receive, send: Send) -> None:
        self.caller = caller
        self.state = caller.state
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.header = dict(scope["headers"])
        self.request_id = caller.admission.request_id(self.header)
        self.names: Mapping[str, str] = {}
        self._is_read = False
        self._num_bytes = 0

    def principal(self) -> Principal:
        """Return who asks. Raises: Unauthenticated; Unavailable until keys are known."""
        return self.state.keys.authenticate(self.header.get(b"authorization"))

    def require_method(self, method: str) -> None:
        """Raise MethodNotAllowed for any other."""
        if self.method != method:
            raise MethodNotAllowed(f"this route takes {method}", allow=[method])

    async def ask(self, tasks: Container[str]) -> tuple[Ask, dict[str, object]]:
        """Return the invocation that a POST asks for and its fields, without nulls. tasks: its model has one.

        Raises: SamovarError.
        """
        self.require_method("POST")
        self.principal()
        if self.header.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedEncoding("send the body as it is: compressed bodies are not taken")
        body = await self.caller.read(self.header, self.receive)
        self._is_read, self._num_bytes = True, len(body)
        found = await apart(len(body), fields.read, body)
        ask = await self._admit(fields.model_of(found))
        ask.content_type = "application/json"  # of the body that its function gets
        if (wrong := models.misfit(ask.entry, tasks)) is not None:
            raise self.state.journey.refuse(ask, wrong)
        return ask, found

    async def unknown(self, model: str) -> FunctionNotFound:
        """Return the error for a model that there is not, or not for this caller. Raises: Unauthenticated."""
        return await asyncio.to_thread(models.unknown, self.state.functions, self.principal(), model)

    async def noted(self, ask: Ask, work: Callable[..., T], *args: object) -> T:
        """Return what some work on a request gives; an error it raises is noted with the ask."""
        try:
            return await apart(self._num_bytes, work, *args)
        except SamovarError as error:
            raise self.state.journey.refuse(ask, error) from None

    async def respond(self, status: int, headers: problems.Headers, body: bytes) -> None:
        """Send a whole answer."""
        length = (b"content-length", b"%d" % len(body))
        headers = [*headers, length, (b"x-request-id", self.request_id)]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: SamovarError) -> None:
        """Send an error object, and count it. Much of the body may still come: then the connection closes."""
        self.state.problems[error.code] += 1
        headers, body = problems.headers(error), problems.encode(error, self.names)
        if self._is_read or error.status not in UNREAD_STATUSES:
            await self.respond(error.status, headers, body)
            return
        headers = [*headers, CLOSE, (b"content-length", b"%d" % len(body)), (b"x-request-id", self.request_id)]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await discard(self.receive)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _admit(self, model: str) -> Ask:
        if not NAME_PATTERN.fullmatch(model):
            raise await self.unknown(model)
        try:
            return await self.caller.admit(model, self.method, self.header, self.request_id, OPENAI)
        except FunctionNotFound:
            raise await self.unknown(model) from None


def parts_of(ask: Ask, num_parts: int) -> list[Ask]:
    """Return the asks of a request that is several: the first pays for all of them at the rate limits."""
    return [ask, *(copy(ask) for _ in range(num_parts - 1))]
