"""The OpenAPI 3.1 document of one function, from the JSON Schemas in its manifest.

This module does not know how the document is served.
"""

from __future__ import annotations

from typing import Any

from samovar.spec import Manifest

OPENAPI_VERSION = "3.1.0"
_DEFS = "#/$defs/"
_COMPONENTS = "#/components/schemas/"
_PROBLEMS = {
    "400": "The body is not JSON",
    "401": "The API key is missing or wrong",
    "403": "The API key lacks the scope to call functions",
    "404": "There is no such function, or the API key does not cover it",
    "413": "The body is too large",
    "422": "The input does not match the schema; `path` says where",
    "429": "Over a rate limit; see Retry-After",
    "500": "The function raised; `type` names the exception",
    "502": "The instance was lost and the call may not be repeated",
    "503": "No capacity now; see Retry-After",
    "504": "The deadline passed; `phase` says where",
}
_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457 problem document",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "code"],
}


def document(manifest: Manifest, server_url: str) -> dict[str, Any]:
    """Return the OpenAPI document of a version; every schema it refers to is inside it."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM_SCHEMA}
    request = _hoist(manifest.input_schema, "Input", schemas)
    answer = _hoist(manifest.output_schema, "Output", schemas)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": manifest.name, "version": str(manifest.version)},
        "servers": [{"url": server_url}],
        "paths": {f"/v1/functions/{manifest.name}/invoke": {"post": _operation(manifest, request, answer)}},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "bearerFormat": "sv_<id>_<secret>"}},
        },
        "security": [{"apiKey": []}],
    }


def _operation(manifest: Manifest, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    streams = manifest.handler in ("generator", "async_generator")
    media_type = "application/x-ndjson" if streams else "application/json"
    body: dict[str, Any] = {"schema": request}
    if manifest.example is not None:
        body["example"] = manifest.example
    return {
        "operationId": f"invoke_{manifest.name.replace('-', '_')}",
        "summary": f"Invoke {manifest.name}" + (", one line of JSON per item" if streams else ""),
        "parameters": [_header("Samovar-Timeout-Ms", "integer"), _header("X-Request-Id", "string")],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            "200": {
                "description": "The function's answer; by server-sent events for those whose Accept prefers them",
                "content": {media_type: {"schema": answer}, "text/event-stream": {}},
            },
            **{status: _problem(description) for status, description in _PROBLEMS.items()},
        },
    }


def _header(name: str, type: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": type}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": f"{_COMPONENTS}Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _hoist(schema: dict[str, Any], side: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with its `$defs` moved into `schemas`; a name that means two things gets `side` in front."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    names = {
        name: f"{side}{name}" if _taken_by_another(name, definition, schemas) else name
        for name, definition in definitions.items()
    }
    for name, definition in definitions.items():
        schemas[names[name]] = _rewrite(definition, names)
    hoisted: dict[str, Any] = _rewrite({k: v for k, v in schema.items() if k not in ("$defs", "$schema")}, names)
    return hoisted


def _taken_by_another(name: str, definition: dict[str, Any], schemas: dict[str, Any]) -> bool:
    return name in schemas and schemas[name] != _rewrite(definition, {})


def _rewrite(value: Any, names: dict[str, str]) -> Any:
    """Return `value` with references to `$defs` (in `$ref` and discriminator mappings) turned into components."""
    if isinstance(value, dict):
        return {key: _rewrite(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_rewrite(item, names) for item in value]
    if isinstance(value, str) and value.startswith(_DEFS):
        name = value.removeprefix(_DEFS)
        return _COMPONENTS + names.get(name, name)
    return value
