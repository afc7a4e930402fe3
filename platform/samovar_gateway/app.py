"""The gateway's routes, composed. What a request meets, in order: uvicorn → the invoke route or
OpenAI's, or Litestar's router → a handler; errors of ours become problem documents on every route but OpenAI's."""

from __future__ import annotations

import logging
from secrets import token_hex

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive, Scope, Send

from samovar.errors import BodyTooLarge, FunctionNotFound, MethodNotAllowed, NotFound, RequestError, SamovarError
from samovar_dispatch.functions import near_names, unknown_function
from samovar_gateway import metrics, problems
from samovar_gateway.admin import Admin
from samovar_gateway.admin.audit_trail import AuditTrail
from samovar_gateway.api_document import api_document
from samovar_gateway.body import BodyReader, WholeBody
from samovar_gateway.health import livez, readyz
from samovar_gateway.inference.core import Inference
from samovar_gateway.inference.rest import PREFIX, InferenceRoutes
from samovar_gateway.invoke import InvokeRoute
from samovar_gateway.jobs import router as jobs
from samovar_gateway.openai.routes import OpenAIRoutes
from samovar_gateway.state import GatewayState

log = logging.getLogger(__name__)

FUNCTIONS_PREFIX = "/v1/functions/"
INVOKE_SUFFIX = "/invoke"
JOBS_SUFFIX = "/jobs"  # inputs of functions come by it, too: its bodies are bounded as theirs
NOWHERE = "/no-such-path"


def create_app(core: Inference, admin: Admin) -> ASGIApp:
    """Return the ASGI application of this gateway.

    The invoke route is matched here, before the router: Litestar gives an `asgi` handler no path parameters, a mount
    at /v1/functions would hide the other routes below it, and the router costs more than the rest of the hot path.
    """
    caller = core.caller
    state, settings = caller.state, caller.state.settings
    backlog = state.dispatcher.room.backlog
    reader = BodyReader(caller.sweeper, backlog, settings.max_body_bytes, settings.body_timeout_s)
    invoke, openai, inference = InvokeRoute(caller), OpenAIRoutes(caller), InferenceRoutes(core)
    others = AuditTrail(create_router(state, admin), state, admin.services.audit)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            path = scope["path"]
            if is_ambiguous(scope["raw_path"]):
                scope["path"] = path = (PREFIX if inference.serves(path) else "") + NOWHERE
            if path.endswith(INVOKE_SUFFIX) and path.startswith(FUNCTIONS_PREFIX):
                name = path[len(FUNCTIONS_PREFIX) : -len(INVOKE_SUFFIX)]
                await invoke(name, scope, receive, send)
                return
            elif openai.serves(path):
                await openai(scope, receive, send)
                return
            elif inference.serves(path):
                await inference(scope, receive, send)
                return
            elif path.endswith(JOBS_SUFFIX) and path.startswith(FUNCTIONS_PREFIX):
                receive = WholeBody(reader, dict(scope["headers"]).get(b"content-length"), receive)
        await others(scope, receive, send)

    return app


def is_ambiguous(raw_path: bytes) -> bool:
    """Return whether another server, such as a proxy that guards some paths, could take this path for another one."""
    if b"//" in raw_path:
        return True
    return b"%" in raw_path and any(part in raw_path.lower() for part in (b"%2f", b"%5c", b"%00"))


def create_router(state: GatewayState, admin: Admin) -> Litestar:
    """Return every route but invoke."""
    return Litestar(
        route_handlers=[livez, readyz, metrics.metrics_route, api_document, *admin.handlers, *jobs.HANDLERS],
        exception_handlers={SamovarError: on_error, HTTPException: on_http_error, Exception: on_bug},
        state=State({"gateway": state, "admin": admin.services, "metrics": metrics.Metrics(state)}),
        openapi_config=None,
        logging_config=None,
        request_max_body_size=state.settings.max_body_bytes,
    )


def on_error(request: Request, error: SamovarError) -> Response[bytes]:  # type: ignore[type-arg]
    """Answer an error of ours with its problem document."""
    if isinstance(error, FunctionNotFound):
        error = _as_seen(request, error)
    request.app.state.gateway.problems[error.code] += 1
    request_id = request.headers.get("x-request-id") or token_hex(8)
    headers = {name.decode(): value.decode("latin-1") for name, value in problems.headers(error)}
    headers["x-request-id"] = request_id
    return Response(problems.encode(error, request_id), status_code=error.status, headers=headers)


def _as_seen(request: Request, error: FunctionNotFound) -> FunctionNotFound:  # type: ignore[type-arg]
    """Return the error as this caller may see it: a bound key never learns the names of functions it does not cover."""
    state = request.app.state.gateway
    header = request.headers.get("authorization")
    principal = state.keys.authenticate(header.encode("latin-1") if header is not None else None)
    name = request.path_params.get("name")
    if principal.functions is None or name is None:
        return error
    return unknown_function(str(name), near_names(str(name), principal.functions & state.functions.entries.keys()))


def _nowhere(request: Request) -> str:  # type: ignore[type-arg]
    if request.scope["path"] == NOWHERE:
        return r"no route: a path, and so a name in it, has no encoded / or \, and no // or NUL"
    return f"no route {request.url.path[:200]}"


def on_http_error(request: Request, error: HTTPException) -> Response[bytes]:  # type: ignore[type-arg]
    """Answer an error of the framework (no such path, wrong method, bad body) in the same form."""
    if error.status_code >= 500:
        return on_bug(request, error)
    if error.status_code == 404:
        return on_error(request, NotFound(_nowhere(request)))
    if error.status_code == 413:
        limit = request.app.state.gateway.settings.max_body_bytes
        return on_error(request, BodyTooLarge(f"the body is larger than {limit} bytes", max_body_bytes=limit))
    if error.status_code == 405:
        allow = (error.headers or {}).get("allow", "").split(", ")
        return on_error(request, MethodNotAllowed(error.detail, allow=sorted(filter(None, allow))))
    return on_error(request, RequestError(error.detail))


def on_bug(request: Request, error: Exception) -> Response[bytes]:  # type: ignore[type-arg]
    """Answer a bug of ours without telling more than its log line's place."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return on_error(request, SamovarError("an error inside the gateway; its log says more"))
