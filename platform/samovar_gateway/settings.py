"""Settings of the gateway process. This module does not know what is done with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from samovar.settings import Secret
from samovar_storage.jobs.webhook_urls import WebhookAllow
from samovar_storage.settings import RequestLogSettings

NO_PORT = -1
GrpcPort = Annotated[
    Annotated[int, Meta(ge=NO_PORT, le=65535)] | None,
    Meta(description="Port of gRPC; 0 picks a free one, -1 is for none; default the one after `port`, 0 with it"),
]
LATEST_OPENING_S = 30.0  # a gateway that is not ready by then takes connections all the same, and says why


class GatewaySettings(RequestLogSettings, frozen=True, kw_only=True):
    """Where the gateway listens and what it lets through."""

    host: Annotated[str, Meta(description="Address the gateway listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of the gateway; 0 picks a free one")] = 8080
    grpc_port: GrpcPort = None
    admin_key: Annotated[
        Secret, Meta(description="An admin API key (sv_<id>_<secret>) that is registered at start; empty for none")
    ] = Secret("")
    gateway_id: Annotated[str, Meta(description="Name of this gateway among others; default node and process id")] = ""
    max_body_bytes: Annotated[int, Meta(gt=0, le=200 << 20, description="Largest request body, in bytes")] = 16 << 20
    body_timeout_s: Annotated[float, Meta(gt=0, description="Longest a client may take to send head or body, s")] = 30.0
    max_connections: Annotated[
        int, Meta(gt=0, description="Connections of clients at a time; fewer where the system allows fewer open files")
    ] = 10_000
    max_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Cap on deadlines, a caller's Samovar-Timeout-Ms and a function's own alike, seconds"),
    ] = 3600.0
    max_waiting_bytes: Annotated[
        int, Meta(gt=0, description="Bodies that may wait in this gateway, being read or for a slot, bytes")
    ] = 512 << 20
    ejection_s: Annotated[
        float,
        Meta(gt=0, description="How long an instance that does worse than its peers gets no calls the first time, s"),
    ] = 10.0
    drain_settle_s: Annotated[
        float,
        Meta(ge=0, description="After SIGTERM, how long /readyz says 503 before no connection is taken any more, s"),
    ] = 0.5
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, description="Cap on the wait for running calls after SIGTERM, s; 0 = each to its own deadline"),
    ] = 0.0
    request_log_keep_days: Annotated[
        float, Meta(gt=0, description="Records of the request log older than this are deleted, days")
    ] = 14.0
    request_log_keep_bytes: Annotated[
        int, Meta(gt=0, description="The oldest records are deleted while the request log's files exceed this, bytes")
    ] = 10 << 30
    idempotency_keep_s: Annotated[
        float, Meta(gt=0, description="How long the answer to an Idempotency-Key is given again (docs/jobs.md), s")
    ] = 24 * 3600.0
    idempotency_bytes: Annotated[
        int, Meta(gt=0, description="What Redis keeps of one API key's answers to Idempotency-Keys, bytes")
    ] = 64 << 20
    answer_max_bytes: Annotated[
        int, Meta(ge=0, description="Larger answers are not kept for fallback or cache (docs/fallback.md), bytes")
    ] = 256 << 10
    answers_bytes: Annotated[int, Meta(ge=0, description="What Redis keeps of answers, all functions, bytes")] = (
        64 << 20
    )
    answers_entries: Annotated[int, Meta(ge=0, description="How many answers Redis keeps, and each gateway")] = 50_000
    answers_function_bytes: Annotated[
        int, Meta(ge=0, description="What Redis keeps of one function's answers, bytes")
    ] = 16 << 20
    answers_function_entries: Annotated[int, Meta(ge=0, description="How many answers of one function Redis keeps")] = (
        10_000
    )
    answers_local_bytes: Annotated[
        int, Meta(ge=0, description="What each gateway keeps of answers in memory, bytes")
    ] = 32 << 20
    resume_bytes: Annotated[
        int, Meta(gt=0, description="What may be kept of all resumable streams (docs/streaming.md), bytes")
    ] = 256 << 20
    webhook_allow: WebhookAllow = ""


def port_of_grpc(port: int, grpc_port: int | None) -> int:
    """Return the port for gRPC beside `port` of HTTP, as both were given: 0 = a free one, NO_PORT = none."""
    if grpc_port is not None:
        return grpc_port
    return port + 1 if 0 < port < 65535 else 0
