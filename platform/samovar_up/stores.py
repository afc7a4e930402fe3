"""The stores of this platform: the user's own, or embedded ones that run as our children.

This module does not know how the embedded servers are configured (`samovar_storage.embedded` does).
"""

from __future__ import annotations

import msgspec

from samovar.settings import Secret
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_up.child import ChildSpec
from samovar_up.settings import UpSettings


class Stores:
    """Which stores to run, and the settings that lead to them.

    Args:
        given: the settings as the user gave them.
    """

    def __init__(self, given: UpSettings) -> None:
        self._given = given
        self._valkey = EmbeddedValkey(given.data_dir) if given.embeds_redis else None
        self._seaweed = EmbeddedSeaweed(given.data_dir) if given.embeds_s3 else None

    @property
    def settings(self) -> UpSettings:
        """The settings with the addresses and credentials of the embedded stores filled in."""
        settings = self._given
        if self._valkey is not None:
            settings = msgspec.structs.replace(settings, redis_url=Secret(self._valkey.redis_url))
        if self._seaweed is not None:
            settings = msgspec.structs.replace(
                settings,
                s3_endpoint=self._seaweed.endpoint,
                s3_access_key=Secret(self._seaweed.access_key),
                s3_secret_key=Secret(self._seaweed.secret_key),
            )
        return settings

    def valkey(self) -> list[ChildSpec]:
        """Return the embedded Valkey, or nothing when the user has a Redis."""
        return [self._spec(self._valkey)] if self._valkey is not None else []

    def seaweedfs(self) -> list[ChildSpec]:
        """Return the embedded SeaweedFS, or nothing when the user has an S3."""
        return [self._spec(self._seaweed)] if self._seaweed is not None else []

    def _spec(self, server: EmbeddedValkey | EmbeddedSeaweed) -> ChildSpec:
        return ChildSpec(
            name=server.name,
            argv=tuple(server.command()),
            environ=server.environment(),
            log_path=self._given.data_dir / "logs" / f"{server.name}.log",
            stop_timeout_s=server.stop_grace_s,
            answers=server.is_ready,
            ends_by_kill=isinstance(server, EmbeddedSeaweed),
        )
