"""What is looked at before anything is started, so that what is wrong is said in one sentence.

Each check returns nothing and raises a ConfigError or Unavailable. This module starts no process.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import redis
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from samovar.errors import BadCredential, ConfigError, DiskFull, PortTaken, StoreUnavailable
from samovar_storage.settings import StoreSettings
from samovar_up.policy import check_disk, check_socket_path

_CONNECT_TIMEOUT_S = 3.0


def prepare_data_dir(data_dir: Path, min_free_bytes: int) -> None:
    """Make the data folder (0700) with its subfolders; it can be written to and its disk has room afterwards."""
    check_socket_path(str(data_dir / "run"))
    try:
        for folder in (data_dir, data_dir / "run", data_dir / "logs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data_dir / f".probe-{os.getpid()}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
        free_bytes = shutil.disk_usage(data_dir).free
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"the disk of {data_dir} is full: free some space, or choose another --data-dir") from error
        raise ConfigError(f"cannot write to the data folder {data_dir}: {error.strerror}") from error
    check_disk(str(data_dir), free_bytes, min_free_bytes)


def choose_port(host: str, port: int) -> int:
    """Return `port`, or a free one for 0, after making sure that it can be listened on."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another with --port") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def check_redis(url: str) -> None:
    """Make sure that the user's own Redis answers and accepts the credentials in `url`."""
    where = _without_credentials(url)
    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=_CONNECT_TIMEOUT_S, socket_timeout=_CONNECT_TIMEOUT_S
        )
        with client:
            client.ping()
    except redis.AuthenticationError as error:
        raise BadCredential(f"Redis at {where} refuses the credentials in redis_url: {error}") from error
    except redis.ResponseError as error:
        raise BadCredential(f"Redis at {where} refuses us: {error}") from error
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"cannot reach Redis at {where}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"redis_url is not a Redis address: {error}") from error


def check_s3(settings: StoreSettings) -> None:
    """Make sure that the user's own S3 answers and accepts the credentials; the bucket may be absent."""
    where = settings.s3_endpoint or f"AWS ({settings.s3_region})"
    try:
        client = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint or None,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key.reveal() or None,
            aws_secret_access_key=settings.s3_secret_key.reveal() or None,
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=10.0,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path" if settings.s3_endpoint else "auto"},
            ),
        )
        client.list_objects_v2(Bucket=settings.s3_bucket, MaxKeys=1)
    except ClientError as error:
        _explain(error, where)
    except (BotoCoreError, ValueError) as error:
        raise StoreUnavailable(f"cannot reach object storage at {where}: {error}") from error


def _explain(error: ClientError, where: str) -> None:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in ("NoSuchBucket", "404") or status == 404:
        return
    if status in (401, 403):
        raise BadCredential(f"object storage at {where} refuses the credentials: {code}") from error
    raise StoreUnavailable(f"object storage at {where} answers {status} {code}") from error


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or '?'}:{parts.port or 6379}"
