"""`GET /v1/models`: functions that OpenAI's routes serve, as their declared tasks say.

| task                                            | route
|-------------------------------------------------|---------------------------------------------
| text-generation, image-text-to-text, any-to-any | /v1/chat/completions, /v1/completions
| embeddings                                      | /v1/embeddings

A model is a function; its task is that of the version with the most traffic. This module does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from samovar.errors import FunctionNotFound, RequestError
from samovar.tasks import EMBEDDINGS, PARTS
from samovar.tasks.generation import refusal
from samovar_dispatch.functions import FunctionEntry, FunctionTable, near_names
from samovar_gateway.auth import Principal

ROUTES: Mapping[str, str] = {
    **dict.fromkeys(PARTS, "/v1/chat/completions and /v1/completions"),
    EMBEDDINGS: "/v1/embeddings",
}
MAX_SHOWN_CHARS = 100


def listing(functions: FunctionTable, principal: Principal) -> dict[str, Any]:
    """Return the models that a key may see, by name."""
    return {"object": "list", "data": [_model(functions.entries[name]) for name in _seen(functions, principal)]}


def one(functions: FunctionTable, principal: Principal, name: str) -> dict[str, Any] | None:
    """Return one model, None if there is none of that name that the key may see."""
    entry = functions.entries.get(name)
    return _model(entry) if entry is not None and principal.sees(name) and _is_model(entry) else None


def unknown(functions: FunctionTable, principal: Principal, name: str) -> FunctionNotFound:
    """Return the error for a model that does not exist, with near names of those that the key may see."""
    near = near_names(name, _seen(functions, principal))
    hint = " or ".join(map(repr, near))
    detail = f"the model {name[:MAX_SHOWN_CHARS]!r} does not exist or you do not have access to it"
    return FunctionNotFound(detail + (f"; did you mean {hint}?" if hint else ""), near=near)


def misfit(entry: FunctionEntry, tasks: Container[str]) -> RequestError | None:
    """Return what is wrong with asking this function for one of those tasks, None if nothing is."""
    name, declared = entry.record.name, entry.main.manifest.task
    if declared in tasks:
        return None
    route = ROUTES.get(declared, f"/v1/functions/{name}/invoke")
    what = f"is for {declared}" if declared else "declares no task"
    return refusal("model", f"the function {name!r} {what}: it is called by {route}", reason="wrong_task")


def _seen(functions: FunctionTable, principal: Principal) -> list[str]:
    entries = [*functions.entries.items()]
    return sorted(name for name, entry in entries if principal.sees(name) and _is_model(entry))


def _is_model(entry: FunctionEntry) -> bool:
    return entry.main.manifest.task in ROUTES


def _model(entry: FunctionEntry) -> dict[str, Any]:
    """Return the model object. task, version: beyond what OpenAI says."""
    manifest = entry.main.manifest
    return {
        "id": manifest.name,
        "object": "model",
        "created": int(manifest.created_at_s),
        "owned_by": "samovar",
        "task": manifest.task,
        "version": manifest.version,
    }
