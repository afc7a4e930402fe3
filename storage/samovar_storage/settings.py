"""Where Redis and the object store are: the part of every platform process's settings that names the stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from samovar.settings import Secret, Settings


class StoreSettings(Settings, frozen=True, kw_only=True):
    """Shared by all processes of a platform. Passed in a 0600 settings file (`--config`), never in arguments."""

    data_dir: Annotated[Path, Meta(description="Folder of everything this node keeps on disk")] = Path(
        "~/.local/share/samovar"
    ).expanduser()
    redis_url: Annotated[Secret, Meta(description="Redis or Valkey, such as redis://:password@host:6379/0")] = Secret(
        "redis://127.0.0.1:6379/0"
    )
    s3_endpoint: Annotated[str, Meta(description="URL of the S3 endpoint; empty for AWS")] = ""
    s3_bucket: Annotated[str, Meta(description="Bucket, created if absent; 3 characters or more")] = "samovar"
    s3_region: Annotated[str, Meta(description="S3 region")] = "us-east-1"
    s3_access_key: Annotated[Secret, Meta(description="S3 access key id")] = Secret("")
    s3_secret_key: Annotated[Secret, Meta(description="S3 secret key")] = Secret("")
    node: Annotated[str, Meta(description="Name of this node; default the host name")] = ""


class RequestLogSettings(StoreSettings, frozen=True, kw_only=True):
    """Shared by gateways and job workers, who both write the request log of their node."""

    request_log: Annotated[bool, Meta(description="Keep a record of every invocation (docs/request-log.md)")] = True
    request_log_spool_bytes: Annotated[
        int, Meta(ge=0, description="What this node keeps of the request log while the object store is away, bytes")
    ] = 1 << 30
    request_log_live_bytes: Annotated[
        int, Meta(ge=0, description="What Redis keeps of a function's newest records, bytes")
    ] = 8 << 20
