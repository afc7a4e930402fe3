"""A process that does nothing but schedule: `python cron_worker.py SETTINGS_FILE EPOCH`. For it a second is a minute.

Its clock began at EPOCH (monotonic seconds) with unix second 1,800,000,000.
"""

from __future__ import annotations

import asyncio
import sys
import time

from samovar import settings
from samovar.policies import Jobs
from samovar_jobs.cron import Scheduler
from samovar_storage.jobs.crons import Crons
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from samovar_storage.settings import StoreSettings


async def main() -> None:
    """Schedule until killed."""
    found, epoch_s = settings.read(StoreSettings, {"config": sys.argv[1]}), float(sys.argv[2])
    redis, objects = connect_async(found.redis_url.reveal()), ObjectStore.from_settings(found)
    scheduler = Scheduler(
        redis,
        Crons(redis, objects),
        RedisJobs(redis, objects),
        lambda name: Jobs(),
        lambda: 1_800_000_000.0 + 60.0 * (time.monotonic() - epoch_s),
    )
    while True:
        await scheduler.look()
        await asyncio.sleep(0.02)


asyncio.run(main())
