"""What is looked at before anything is started, so that what is wrong is said in one sentence.

Each check raises a ConfigError or Unavailable; only `listen` leaves something behind. This module starts no process.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from samovar.errors import ConfigError, DiskFull, PortTaken
from samovar_storage.failures import translating
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.settings import StoreSettings
from samovar_up.gateways import BACKLOG
from samovar_up.policy import check_disk, check_socket_path


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


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a socket that listens on `port`, or on a free one for 0. flag: chooses another. Raises PortTaken or
    ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken: choose another with {flag}") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def check_redis(url: str) -> None:
    """Make sure that the user's own Redis answers and accepts the credentials in `url`.

    Raises: ConfigError (not an address), BadCredential, StoreUnavailable.
    """
    try:
        client = connect_sync(url)
    except ValueError as error:
        raise ConfigError(f"redis_url is not a Redis address: {error}") from error
    with client, translating(f"Redis at {_without_credentials(url)}"):
        client.ping()


def check_s3(settings: StoreSettings) -> None:
    """Make sure that the user's own S3 answers and accepts the credentials; the bucket exists afterwards.

    Raises: BadCredential, StoreUnavailable, ConfigError (an impossible endpoint or bucket name).
    """
    try:
        store = ObjectStore.from_settings(settings)
    except ValueError as error:
        raise ConfigError(f"s3_endpoint is not an address: {error}") from error
    with closing(store):
        store.ensure_bucket()


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or '?'}:{parts.port or 6379}"
