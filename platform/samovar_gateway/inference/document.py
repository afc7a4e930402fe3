"""The routes below /v2 as `/openapi.json` has them. Their own form is the Open Inference Protocol's; this is its gist.

This module does not know what the routes do.
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]

_TEXT = {"type": "string"}
_TENSOR = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "datatype": _TEXT,
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
    "required": ["name", "datatype", "shape"],
    "additionalProperties": False,
}
_REQUEST = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]}},
        "parameters": {"type": "object"},
    },
    "required": ["inputs"],
    "additionalProperties": False,
}
_ERROR = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
_EVERY = {
    "400": "The request cannot be read, or asks for what is not possible",
    "401": "The API key is missing or wrong",
    "403": "The API key lacks the scope",
    "404": "No such path, model or version that this key may know of",
    "405": "Another method; see Allow",
    "503": "Not now; see Retry-After",
}
_CALL = {
    "408": "The body did not come in time",
    "413": "The body is too large",
    "415": "The body is compressed",
    "422": "A tensor is not what the model takes: its name is in front",
    "429": "A rate limit; see Retry-After",
    "500": "The function raised",
    "502": "The instance was lost and the call may not be repeated",
    "504": "The deadline passed",
}
_MODEL = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "infer": (_REQUEST, "Infer: tensors in, tensors out, as JSON or with binary tensors behind it"),
    "infer_stream": (_REQUEST, "Infer, an event for each item that a generator yields"),
    "generate": ({"type": "object"}, "Infer with inputs by name, as plain values"),
    "generate_stream": ({"type": "object"}, "The same, an event for each item"),
}


def paths() -> dict[str, dict[str, Operation]]:
    """Return every path with its operations."""
    found = {
        "/v2": {"get": _get("server_metadata", "What this server speaks", is_open=True)},
        "/v2/health/live": {"get": _get("server_live", "The process runs", is_open=True)},
        "/v2/health/ready": {"get": _get("server_ready", "A call sent now would be taken in", is_open=True)},
        "/v2/models/stats": {"get": _get("statistics", "Counters of all models that the key covers")},
        "/v2/repository/index": {"post": _post("repository_index", "Every model that the key covers", None, {})},
    }
    for number, model in enumerate(_MODEL):
        suffix = "_of_version" if number else ""
        found[model] = {"get": _get(f"model_metadata{suffix}", "A model's versions and tensors")}
        found[f"{model}/config"] = {"get": _get(f"model_config{suffix}", "A model's tensors, and whether it streams")}
        found[f"{model}/ready"] = {"get": _get(f"model_ready{suffix}", "Calls of the model are taken in")}
        found[f"{model}/stats"] = {"get": _get(f"model_statistics{suffix}", "Counters of the model")}
        for name, (body, summary) in _CALLS.items():
            found[f"{model}/{name}"] = {"post": _post(f"{name}{suffix}", summary, body, _CALL)}
    for path, operations in found.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
        for operation in operations.values():
            operation["parameters"] = parameters
    return found


def _get(name: str, summary: str, *, is_open: bool = False) -> Operation:
    return _operation(name, summary, {}) | ({"security": []} if is_open else {})


def _post(name: str, summary: str, body: dict[str, Any] | None, statuses: dict[str, str]) -> Operation:
    operation = _operation(name, summary, statuses)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _operation(name: str, summary: str, statuses: dict[str, str]) -> Operation:
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for status, text in (_EVERY | statuses).items()
    }
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    if name.startswith("infer"):
        content["application/octet-stream"] = {}
    if "stream" in name:
        content["text/event-stream"] = {}
    good = {"200": {"description": "Done", "content": content}}
    return {"operationId": name, "summary": summary, "tags": ["Open Inference Protocol"], "responses": good | errors}
