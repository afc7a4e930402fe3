"""A process that does nothing but deliver webhooks: `python webhook_worker.py SETTINGS_FILE`. Jobs are forgotten."""

from __future__ import annotations

import asyncio
import sys

from samovar import settings
from samovar_jobs.webhooks.deliverer import Deliverer
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.webhook_urls import parse_allow
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from samovar_storage.settings import StoreSettings


class Forgotten:
    """A store without jobs."""

    async def get_many(self, job_ids: list[str]) -> list[JobRecord | None]:
        """Return None for each."""
        return [None for _ in job_ids]


async def main() -> None:
    """Deliver until killed."""
    found = settings.read(StoreSettings, {"config": sys.argv[1]})
    redis = connect_async(found.redis_url.reveal())
    await Deliverer(redis, ObjectStore.from_settings(found), Forgotten(), parse_allow("127.0.0.0/8"), 8).run()


asyncio.run(main())
