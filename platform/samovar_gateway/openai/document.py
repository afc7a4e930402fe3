"""OpenAI's routes in `/openapi.json`. Pure.

Fields are those of the tables in `fields.py`; what is in them is said where a JSON Schema can say it shortly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from samovar.tasks.generation import ROLES
from samovar_gateway.openai import fields

ERROR_NAME = "OpenAIError"
ERROR: Mapping[str, Any] = {
    "type": "object",
    "description": "OpenAI's error object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_TEXT: Mapping[str, Any] = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, _TOKENS]}, "minItems": 1}, _TOKENS]}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": [*ROLES]}, "content": {}},
    "required": ["role"],
}
_AT_LEAST_ONE = {"type": ["integer", "null"], "minimum": 1}
_PENALTY = {"type": ["number", "null"], "minimum": -2, "maximum": 2}
_KNOWN: Mapping[str, Any] = {
    "model": {**_TEXT, "description": "name of a function"},
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "prompt": _TEXTS,
    "input": _TEXTS,
    "stream": {"type": ["boolean", "null"]},
    "encoding_format": {"enum": ["float", "base64", None]},
    **{name: _AT_LEAST_ONE for name in ("dimensions", "max_tokens", "max_completion_tokens", "n")},
    **{name: _PENALTY for name in ("presence_penalty", "frequency_penalty")},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
}
_REFUSALS = {
    "400": "The request cannot be done; `param` names the field",
    "401": "The API key is missing or wrong",
    "403": "The API key lacks the scope",
    "404": "No such model, or none that this key may know of",
    "405": "Another method; see Allow",
    "408": "The body did not come in time",
    "413": "The body is too large",
    "415": "The body is compressed",
    "503": "Not now; see Retry-After",
}
_CALLS = {
    "422": "The function takes another input",
    "429": "A rate limit; see Retry-After and RateLimit",
    "500": "The function raised",
    "502": "The instance was lost and the call may not be repeated",
    "504": "The deadline passed",
}


def paths() -> dict[str, dict[str, Any]]:
    """Return the path items. Errors refer to the schema ERROR_NAME."""
    events: dict[str, Any] = {"text/event-stream": {}}
    return {
        "/v1/models": {"get": _get("list_models", "List the functions that OpenAI's routes serve.")},
        "/v1/models/{id}": {"get": _get("get_model", "Return one of them.", "id")},
        "/v1/chat/completions": {
            "post": _post(
                "create_chat_completion", "Chat with a function that generates text.", fields.CHAT, "messages", events
            )
        },
        "/v1/completions": {
            "post": _post("create_completion", "Have a text continued.", fields.COMPLETION, "prompt", events)
        },
        "/v1/embeddings": {"post": _post("create_embeddings", "Embed texts.", fields.EMBEDDING, "input", {})},
    }


def _get(name: str, summary: str, *parameters: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [{"name": one, "in": "path", "required": True, "schema": _TEXT} for one in parameters],
        "responses": {"200": _good({}), **_errors(_REFUSALS)},
    }


def _post(name: str, summary: str, names: Iterable[str], needed: str, more: Mapping[str, Any]) -> dict[str, Any]:
    body = {
        "type": "object",
        "properties": {field: _KNOWN.get(field, {}) for field in sorted(names)},
        "required": ["model", needed],
    }
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": _good(more), **_errors(_REFUSALS | _CALLS)},
    }


def _good(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": "Done", "content": {"application/json": {"schema": {"type": "object"}}, **more}}


def _errors(statuses: Mapping[str, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ERROR_NAME}"}}}
    return {status: {"description": text, "content": content} for status, text in statuses.items()}
