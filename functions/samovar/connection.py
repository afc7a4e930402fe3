"""Where the gateway is and which key to show it: flag, variable, or what `samovar up` wrote on this machine.

This module does not know HTTP.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from samovar.errors import ConfigError

DEFAULT_DATA_DIR = "~/.local/share/samovar"
CONNECTION_FILE = "connection.json"


@dataclass(frozen=True, slots=True)
class Connection:
    """A gateway's address and an API key for it; the key never shows in a repr. source: where they came from."""

    url: str
    api_key: str
    source: str

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r}, api_key='***', source={self.source!r})"


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder `samovar up` uses here unless told otherwise."""
    return Path(environ.get("SAMOVAR_DATA_DIR") or DEFAULT_DATA_DIR).expanduser()


def find_connection(
    url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Return the gateway to talk to: arguments, then SAMOVAR_URL and SAMOVAR_API_KEY, then the data folder's file.

    The file's key is only ever sent to the file's own address.
    Raises: ConfigError if no address is known, it is no http address, or the file cannot be read.
    """
    url = _checked(url or environ.get("SAMOVAR_URL"))
    api_key = api_key or environ.get("SAMOVAR_API_KEY") or None
    if url and api_key:
        return Connection(url, api_key, "given")
    path = data_dir(environ) / CONNECTION_FILE
    local = _read(path)
    if local is None:
        if url:
            return Connection(url, "", "given")
        raise ConfigError("no platform is known: start one with `samovar up`, or set SAMOVAR_URL and SAMOVAR_API_KEY")
    if url and url != local.url:
        return Connection(url, api_key or "", "given")
    return Connection(local.url, api_key or local.api_key, str(path))


def _checked(url: str | None) -> str | None:
    if not url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not an address such as http://127.0.0.1:8080")
    return url.rstrip("/")


def _read(path: Path) -> Connection | None:
    try:
        content = json.loads(path.read_bytes())
        url, key = str(content["url"]).rstrip("/"), str(content["admin_key"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged; `samovar up` writes it anew") from error
    if not url:
        raise ConfigError(f"the platform of {path.parent} is still starting, or its start failed")
    return Connection(url, key, str(path))
