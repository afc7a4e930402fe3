"""`GET /openapi.json`: the OpenAPI 3.1 document of the platform's own routes, made from the routes themselves.

Paths, methods, summaries and answers come from the handlers; what a handler reads of body and query is listed here,
once per handler (a test finds what is missing). The document of one function is `admin/openapi.py`'s.
This module does not know what the routes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from samovar.jobs import JobState
from samovar.spec import Manifest, Scaling
from samovar_gateway.admin.functions import WarmBody
from samovar_gateway.admin.keys import KeyBody, RotateBody
from samovar_gateway.admin.rollout import CanaryBody, DeployOptions, MirrorBody, PinBody, RollbackBody
from samovar_gateway.admin.uploads import CompleteBody, PlanBody
from samovar_gateway.inference import document as inference
from samovar_gateway.jobs.crons import CronBody
from samovar_gateway.jobs.jobs import MAX_LIMIT, QUARANTINED, PurgeBody
from samovar_gateway.jobs.submit import SubmitBody
from samovar_gateway.jobs.uploads import UploadBody
from samovar_gateway.jobs.webhooks import EnableBody, OverlapBody, ReplayBody
from samovar_gateway.openai import document as openai

OPEN = ("livez", "readyz", "metrics_route", "api_document")  # no key is asked for
BODIES: Mapping[str, type[msgspec.Struct]] = {
    "create_version": Manifest,
    "scale": Scaling,
    "warm": WarmBody,
    "canary": CanaryBody,
    "rollback": RollbackBody,
    "pin": PinBody,
    "mirror": MirrorBody,
    "plan": PlanBody,
    "complete": CompleteBody,
    "create_key": KeyBody,
    "rotate_key": RotateBody,
    "submit_jobs": SubmitBody,
    "begin_upload": UploadBody,
    "purge_jobs": PurgeBody,
    "put_cron": CronBody,
    "replay_webhooks": ReplayBody,
    "enable_webhook": EnableBody,
    "rotate_webhook_secret": OverlapBody,
}
BODILESS = ("promote", "undo", "cancel_job", "retry_job", "cancel_group", "run_cron")
_NUMBER, _TEXT = {"type": "number", "minimum": 0}, {"type": "string"}
_REQUESTS = {
    **dict.fromkeys(("since_s", "until_s", "slower_ms", "version", "limit"), _NUMBER),
    "status": {"type": "string", "pattern": r"^\d(\d\d|xx)$"},
}
QUERIES: Mapping[str, Mapping[str, Any]] = {
    "create_version": {name: _TEXT for name in DeployOptions.__struct_fields__},
    "read_logs": {"lines": {"type": "integer", "minimum": 0, "maximum": 10_000}, "follow": {"enum": ["0", "1"]}},
    "list_requests": _REQUESTS,
    "summarise_requests": _REQUESTS,
    "list_request_files": _REQUESTS,
    "read_audit": {"since_s": _NUMBER, "limit": _NUMBER},
    "list_jobs": {
        **dict.fromkeys(("function", "group", "cursor"), _TEXT),
        "state": {"enum": [*map(str, JobState), QUARANTINED]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    },
    "get_job": {"wait_s": _NUMBER},
    "list_webhooks": {"key_id": _TEXT},
    "enable_webhook": {"key_id": _TEXT},
    "job_events": {"last_event_id": _TEXT},
}
HEADERS: Mapping[str, Mapping[str, Any]] = {
    "invoke": {
        "Samovar-Timeout-Ms": _NUMBER,
        "Samovar-Priority": {"enum": ["high", "normal", "low"]},
        "Prefer": {"enum": ["respond-async"]},
        "Idempotency-Key": _TEXT,
        "Samovar-Resume": {"type": "number", "minimum": 0, "maximum": 60},
        "Last-Event-ID": _TEXT,
    },
    "submit_jobs": {"Idempotency-Key": _TEXT},
    "job_events": {"Last-Event-ID": _TEXT},
}
_ANY_ROUTE = {
    "400": "The request cannot be read",
    "404": "No such path, or nothing of that name that this key may know of",
    "405": "Another method; see Allow",
    "408": "Head or body did not come in time",
    "413": "The body is too large",
    "415": "The body is compressed",
    "431": "Too many headers, or too long",
    "503": "Not now; see Retry-After",
}
_WITH_KEY = {"401": "The API key is missing or wrong", "403": "The API key lacks the scope"}
_WITH_INPUT = {"422": "A value is wrong; `path` says which"}
_CHANGES = {"409": "What is there does not allow it"}
_INVOKE = {
    **_WITH_INPUT,
    "409": "The first request with this Idempotency-Key still runs; another connection goes on with this stream",
    "410": "What was to follow in this stream is lost",
    "429": "A rate limit; see Retry-After and RateLimit",
    "500": "The function raised; `type` names the exception",
    "502": "The instance was lost and the call may not be repeated",
    "504": "The deadline passed; `phase` says where",
}
_RATE = {"429": "A rate limit; see Retry-After and RateLimit"}
_MORE: Mapping[str, Mapping[str, str]] = {
    "submit_jobs": _RATE,
    "begin_upload": _RATE,
    "retry_job": _RATE,
    "run_cron": {**_RATE, **_WITH_INPUT},
    "put_cron": _CHANGES,
    "get_result": {**_INVOKE, "409": "The job has not ended, or was cancelled"},
    "delete_job": _CHANGES,
}
_ANYTHING: Mapping[str, Any] = {
    "application/json": {"schema": {}},
    "application/x-ndjson": {},
    "application/octet-stream": {},
}
_STOPPING = {"202": {"description": "It is being stopped"}}
_ALSO: Mapping[str, Mapping[str, Any]] = {
    "invoke": {"204": {"description": "The stream has ended, and the client has its end"}},
    "delete_job": _STOPPING,
    "cancel_job": _STOPPING,
    "get_result": {
        "200": {"description": "The job's answer", "content": _ANYTHING},
        "307": {"description": "It is large: see Location"},
    },
    "job_events": {"204": {"description": "The job has ended, and the client has seen it"}},
}
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem document",
    "properties": {
        **{name: {"type": "string"} for name in ("type", "title", "detail", "code", "request_id")},
        "status": {"type": "integer"},
    },
    "required": ["type", "title", "status", "detail", "code", "request_id"],
}
_REF = "#/components/schemas/{name}"
Handlers = list[tuple[str, HTTPRouteHandler]]


@get("/openapi.json", sync_to_thread=False)
def api_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return this document."""
    return document(request.app)


def handlers_of(app: Litestar) -> Handlers:
    """Return path template and handler of every route but OPTIONS."""
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    found = [(route.path_format, handler) for route in routes for handler in route.route_handlers]
    return sorted((one for one in found if "OPTIONS" not in one[1].http_methods), key=lambda one: one[0])


def document(app: Litestar) -> dict[str, Any]:
    """Return the document; every schema that it refers to is inside it."""
    handlers = handlers_of(app)
    answers = {handler.handler_name: _answer_type(handler) for _, handler in handlers}
    types = [*BODIES.values(), *(answer for answer in answers.values() if _is_json(answer))]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF, schema_hook=_anything)
    of_body = dict(zip(BODIES, schemas, strict=False))
    of_answer = dict(zip((name for name in answers if _is_json(answers[name])), schemas[len(BODIES) :], strict=True))
    paths: dict[str, dict[str, Any]] = {"/v1/functions/{name}/invoke": {"post": _invoke()}, **openai.paths()}
    for path, handler in handlers:
        name = handler.handler_name
        operation = _operation(path, handler, of_body.get(name), of_answer.get(name), answers[name])
        paths.setdefault(path, {})[next(iter(handler.http_methods - {"HEAD"})).lower()] = operation
    paths |= inference.paths()
    return {
        "openapi": "3.1.0",
        "info": {"title": "samovar", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM, openai.ERROR_NAME: openai.ERROR},
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "bearerFormat": "sv_<id>_<secret>"}},
        },
        "security": [{"apiKey": []}],
    }


def _anything(_type: type) -> dict[str, Any]:
    return {"description": "anything"}


def _answer_type(handler: HTTPRouteHandler) -> Any:
    answer = get_type_hints(handler.fn)["return"]
    return get_args(answer)[0] if get_origin(answer) is Response else answer


def _is_json(answer: Any) -> bool:
    return answer not in (Stream, bytes, type(None), ASGIApp)


def _operation(path: str, handler: HTTPRouteHandler, body: Any, schema: Any, answer: Any) -> dict[str, Any]:
    name = handler.handler_name
    found: dict[str, Any] = {
        "operationId": name,
        "summary": (handler.fn.__doc__ or "").partition("\n")[0],
        "parameters": [*_path_parameters(path), *_query_parameters(name), *_header_parameters(name)],
        "responses": {
            str(handler.status_code): _good(answer, schema),
            **_ALSO.get(name, {}),
            **_problems(_statuses(path, handler)),
        },
    }
    if name == "readyz":
        found["responses"]["503"] = _good(answer, schema)
    if body is not None:
        required = name not in ("rotate_key",)
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    if name in OPEN:
        found["security"] = []
    return found


def _statuses(path: str, handler: HTTPRouteHandler) -> dict[str, str]:
    name, statuses = handler.handler_name, dict(_ANY_ROUTE)
    if name not in OPEN:
        statuses |= _WITH_KEY
    if name in BODIES or name in QUERIES:
        statuses |= _WITH_INPUT
    if "GET" not in handler.http_methods or "{name}" in path:
        statuses |= _CHANGES
    return {**statuses, **_MORE.get(name, {})}


def _invoke() -> dict[str, Any]:
    return {
        "operationId": "invoke",
        "summary": "Call a function; its own document is at /v1/functions/{name}/openapi.json.",
        "parameters": [*_path_parameters("/{name}"), *_header_parameters("invoke")],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}},
        "responses": {
            "200": {"description": "The function's answer", "content": {**_ANYTHING, "text/event-stream": {}}},
            "202": {"description": "A job, as was preferred", "content": {"application/json": {"schema": {}}}},
            **_problems(_ANY_ROUTE | _WITH_KEY | _INVOKE),
        },
    }


def _good(answer: Any, schema: Any) -> dict[str, Any]:
    if answer is type(None):
        return {"description": "Done"}
    if answer is Stream:
        return {"description": "A JSON object a line", "content": {"application/x-ndjson": {}}}
    if answer == ASGIApp:
        return {"description": "Server-sent events", "content": {"text/event-stream": {}}}
    if answer is bytes:
        return {"description": "Prometheus text format", "content": {"text/plain": {}}}
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}


def _problems(statuses: Mapping[str, str]) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": text, "content": content} for status, text in statuses.items()}


def _header_parameters(name: str) -> Iterable[dict[str, Any]]:
    found = HEADERS.get(name, {}).items()
    return [{"name": header, "in": "header", "required": False, "schema": schema} for header, schema in found]


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _query_parameters(name: str) -> Iterable[dict[str, Any]]:
    fields = QUERIES.get(name, {})
    return [{"name": field, "in": "query", "required": False, "schema": schema} for field, schema in fields.items()]
