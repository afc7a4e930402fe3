"""The real stores, for tests: what one session started, and settings that point at it."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.settings import Secret
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.settings import StoreSettings

# Databases 1-14 are handed to tests in turn; 0 stays for those who start whole platforms.
NUM_DATABASES = 14


@dataclass(frozen=True, slots=True)
class Stores:
    """A Redis database and a bucket that belong to one test."""

    redis_url: str
    s3_endpoint: str
    s3_bucket: str
    s3_access_key: str
    s3_secret_key: str

    def settings(self, data_dir: Path, **more: Any) -> StoreSettings:
        """Return settings that point a platform process, or an ObjectStore, here."""
        return StoreSettings(
            data_dir=data_dir,
            redis_url=Secret(self.redis_url),
            s3_endpoint=self.s3_endpoint,
            s3_bucket=self.s3_bucket,
            s3_access_key=Secret(self.s3_access_key),
            s3_secret_key=Secret(self.s3_secret_key),
            **more,
        )

    def write_settings_file(self, path: Path, data_dir: Path, **more: Any) -> Path:
        """Write a 0600 settings file for `--config`: the stores, the data folder, and `more` (JSON values)."""
        values = {
            "data_dir": str(data_dir),
            "redis_url": self.redis_url,
            "s3_endpoint": self.s3_endpoint,
            "s3_bucket": self.s3_bucket,
            "s3_access_key": self.s3_access_key,
            "s3_secret_key": self.s3_secret_key,
            **more,
        }
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(values, file)
        return path


def stores_for_a_test(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, number: int) -> Stores:
    """Return a database and a bucket name nobody else uses at the time."""
    return Stores(
        redis_url=valkey.redis_url.rsplit("/", 1)[0] + f"/{1 + number % NUM_DATABASES}",
        s3_endpoint=seaweed.endpoint,
        s3_bucket=f"test-{uuid.uuid4().hex[:12]}",
        s3_access_key=seaweed.access_key,
        s3_secret_key=seaweed.secret_key,
    )
