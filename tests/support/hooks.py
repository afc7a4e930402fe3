"""Jobs with webhooks, ended as the job store's scripts end them."""

from __future__ import annotations

import time

import redis.asyncio as redis_async

from samovar.jobs import Webhook
from samovar_storage.jobs.hooks import TELL_WEBHOOK, hook_field
from samovar_storage.jobs.layout import job_key
from samovar_storage.jobs.records import JobSpec

KEY = "0123456789ab"
HOST = "http://one.test/hook"
AT_MS = int(time.time() * 1000)


def spec(url: str, key_id: str = KEY) -> JobSpec:
    """Return a job with a webhook for how it finished or failed."""
    webhook = Webhook(url=url, events=["finished", "failed"])
    return JobSpec(function="echo", key_id=key_id, created_at_s=1.0, webhook=webhook)


async def end(
    redis: redis_async.Redis, job_id: str, url: str = HOST, state: str = "finished", key_id: str = KEY
) -> None:
    """Do what the script that ends a job does for its webhook."""
    hook = hook_field(spec(url, key_id=key_id))
    await redis.hset(job_key(job_id), mapping={"sv_hook": hook, "status": state})
    script = TELL_WEBHOOK + "tell_webhook(redis.call('HGET', KEYS[1], 'sv_hook'), ARGV[1], ARGV[2], ARGV[3])"
    await redis.eval(script, 1, job_key(job_id), job_id, state, AT_MS)
