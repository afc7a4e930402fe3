"""What administrative calls leave behind: one audit entry for each that changes something, or tried to.

This stands around the router and sees a call as it comes and its status as it goes; secrets, payloads and long values
never get into an entry. This module does not know what the routes do, nor where entries go.
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from samovar.errors import SamovarError
from samovar_gateway.admin.requests import AnyRequest
from samovar_gateway.state import GatewayState
from samovar_storage.audit import AuditEntry, AuditLog

READING = ("GET", "HEAD", "OPTIONS")
MAX_BODY_BYTES = 256 * 1024
MAX_CHANGE_BYTES = 2048
MAX_TEXT = 200
MAX_ITEMS = 20
MAX_DEPTH = 6
REDACTED, LEFT_OUT = "[redacted]", "[left out]"

# what administers; a route that carries inputs to functions must never match. Who stops or repeats a job of another
# key is noted by the route (`jobs/access.py`): only it knows whose it is
_AUDITED = re.compile(
    r"^/v1/(functions(/[^/]+(/(versions|scale|warm|route/[a-z]+))?)?"
    r"|(uploads|keys|crons|webhooks)(/.*)?|jobs/purge)/?$"
)
_SECRET = re.compile(r"(?i)secret|token(?!iz)|passw|credential|authori[sz]ation|cookie|api_?key|signature|^key$")
_PAYLOADS = frozenset({"example", "value", "input", "input_schema", "output_schema"})
_API_KEY = re.compile(r"sv_[0-9a-fA-F]+_[0-9A-Za-z_-]+")


class AuditTrail:
    """The ASGI application `app`, audited."""

    def __init__(self, app: ASGIApp, state: GatewayState, log: AuditLog) -> None:
        self._app = app
        self._state = state
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request; note it if it is one that changes something."""
        if scope["type"] != ScopeType.HTTP or not is_audited(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        at_s, body, status = time.time(), bytearray(), 0
        request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")

        async def hear() -> Any:
            message = await receive()
            if message["type"] == "http.request" and len(body) <= MAX_BODY_BYTES:
                body.extend(message.get("body", b"")[: MAX_BODY_BYTES + 1])
            return message

        async def tell(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = dict(message["headers"]).get(b"x-request-id", b"").decode("latin-1") or request_id
            await send(message)

        try:
            await self._app(scope, hear, tell)
        finally:
            self._log.note(self._entry(scope, at_s, bytes(body), status, request_id))

    def _entry(self, scope: HTTPScope, at_s: float, body: bytes, status: int, request_id: str) -> AuditEntry:
        return AuditEntry(
            at_s=at_s,
            key_id=self._caller(scope),
            method=str(scope["method"]),
            path=_text(scope["path"]),
            status=status,
            change=describe(body),
            request_id=_text(request_id),
        )

    def _caller(self, scope: HTTPScope) -> str:
        try:
            return self._state.keys.authenticate(dict(scope["headers"]).get(b"authorization")).key_id
        except SamovarError:
            return ""


def note_deed(log: AuditLog, request: AnyRequest, key_id: str, status: int, change: Any) -> None:
    """Note a request that only its route knows to be one that administers. change: JSON, without secrets."""
    log.note(
        AuditEntry(
            at_s=time.time(),
            key_id=key_id,
            method=str(request.method),
            path=_text(request.url.path),
            status=status,
            change=change,
            request_id=_text(request.headers.get("x-request-id", "")),
        )
    )


def is_audited(method: str, path: str) -> bool:
    """Return whether a request changes something, or tries to."""
    return method not in READING and _AUDITED.match(path) is not None


def describe(body: bytes) -> Any:
    """Return what a request's body asks for, short enough to keep and without secrets; None for an empty one."""
    if not body:
        return None
    try:
        asked = _shown(msgspec.json.decode(body)) if len(body) <= MAX_BODY_BYTES else {"bytes": f"> {MAX_BODY_BYTES}"}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"bytes": len(body)}
    if len(msgspec.json.encode(asked)) <= MAX_CHANGE_BYTES:
        return asked
    if not isinstance(asked, dict):
        return {"bytes": len(body)}
    plain = {name: item for name, item in asked.items() if not isinstance(item, dict | list)}
    return {**dict([*plain.items()][:MAX_ITEMS]), "bytes": len(body)} if plain else {"bytes": len(body)}


def _shown(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _text(value)
    if depth >= MAX_DEPTH and isinstance(value, dict | list):
        return LEFT_OUT
    if isinstance(value, dict):
        return {_text(name): _field(name, item, depth) for name, item in [*value.items()][: 4 * MAX_ITEMS]}
    if isinstance(value, list):
        more = [LEFT_OUT] if len(value) > MAX_ITEMS else []
        return [_shown(item, depth + 1) for item in value[:MAX_ITEMS]] + more
    return value


def _field(name: str, value: Any, depth: int) -> Any:
    if _SECRET.search(name):
        return REDACTED
    return LEFT_OUT if name in _PAYLOADS else _shown(value, depth + 1)


def _text(value: str) -> str:
    """Return a text as it may be kept: nothing that looks like an API key, nothing long."""
    shown = _API_KEY.sub(REDACTED, value)
    return shown if len(shown) <= MAX_TEXT else shown[:MAX_TEXT] + "…"
