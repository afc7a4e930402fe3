"""`/livez` and `/readyz`. Ready means: a call sent now would be taken in."""

from __future__ import annotations

from litestar import Response, get
from litestar.datastructures import State

from samovar_gateway.state import GatewayState

LISTENER = "listener"
NO_FILE = "Redis keeps no append-only file (appendonly no): jobs that were accepted end with it"


@get("/livez", sync_to_thread=False)
def livez(state: State) -> dict[str, str]:
    """The process runs and its event loop turns."""
    return {"status": "alive", "gateway_id": state.gateway.gateway_id}


@get("/readyz", sync_to_thread=False)
def readyz(state: State) -> Response[dict[str, object]]:
    """200 when the gateway can serve, else 503 with what is missing; and warnings of what keeps it from nothing."""
    missing = what_is_missing(state.gateway)
    body: dict[str, object] = {"status": "not ready" if missing else "ready", "gateway_id": state.gateway.gateway_id}
    if missing:
        body["missing"] = missing
    if not state.gateway.jobs.barrier.has_file:
        body["warnings"] = [NO_FILE]
    return Response(body, status_code=503 if missing else 200)


def what_is_missing(gateway: GatewayState) -> list[str]:
    """Return what keeps the gateway from serving, in words; empty = ready."""
    parts = {
        "function table": gateway.functions.loaded,
        "api keys": gateway.keys.loaded,
        LISTENER: gateway.listening,
        "draining": not gateway.leaving,
    }
    return [part for part, present in parts.items() if not present]
