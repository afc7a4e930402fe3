"""The embedded servers: private files, loopback, ports, and what a kill leaves behind."""

from __future__ import annotations

import stat
from pathlib import Path

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.live import connect_sync


def test_both_servers_answer(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> None:
    assert valkey.is_ready()
    assert seaweed.is_ready()
    with connect_sync(valkey.redis_url) as client:
        assert client.config_get("appendonly") == {b"appendonly": b"yes"} or client.config_get("appendonly")[
            "appendonly"
        ] in ("yes", b"yes")


def test_what_holds_a_secret_is_private(services_dir: Path, valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> None:
    for name in ("secrets.json", "valkey/valkey.conf", "seaweedfs/s3.json"):
        assert stat.S_IMODE((services_dir / name).stat().st_mode) == 0o600
    for secret in (valkey.redis_url.split(":")[2].split("@")[0], seaweed.secret_key):
        assert secret not in " ".join(valkey.command() + seaweed.command())
