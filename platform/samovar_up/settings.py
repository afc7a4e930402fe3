"""What `samovar up` can be told: flags, `SAMOVAR_` variables or a settings file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from samovar.settings import Secret
from samovar_gateway.settings import GrpcPort
from samovar_storage.settings import StoreSettings


class UpSettings(StoreSettings, frozen=True, kw_only=True):
    """Settings of the supervisor. An empty `redis_url` or `s3_endpoint` means: run an embedded one."""

    redis_url: Annotated[Secret, Meta(description="Your own Redis or Valkey; empty runs an embedded Valkey")] = Secret(
        ""
    )
    s3_endpoint: Annotated[
        str, Meta(description="URL of your own S3; empty runs an embedded SeaweedFS, or means AWS when keys are given")
    ] = ""
    host: Annotated[str, Meta(description="Address the gateway listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port the gateway listens on; 0 picks a free one")] = 8080
    grpc_port: GrpcPort = None
    ready_timeout_s: Annotated[float, Meta(gt=0, description="Longest wait for the platform to be ready, seconds")] = (
        180.0
    )
    gateways: Annotated[int, Meta(ge=1, le=64, description="Gateway processes, all on the one port")] = 1
    job_workers: Annotated[int, Meta(ge=0, le=64, description="Job worker processes; 0 = none here")] = 1
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="Cap on the wait for running calls on shutdown, s; 0 = each to its own deadline")
    ] = 0.0
    min_free_disk_bytes: Annotated[int, Meta(ge=0, description="Free space the data folder's disk must have")] = (
        512 * 1024 * 1024
    )

    @property
    def embeds_redis(self) -> bool:
        return not self.redis_url

    @property
    def embeds_s3(self) -> bool:
        return not (self.s3_endpoint or self.s3_access_key)
