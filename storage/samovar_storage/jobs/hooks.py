"""The seam between jobs and webhooks: what a job's hash says of its webhook, and the Lua that notes an event.

A job with a webhook has the field `sv_hook` (`hook_field`). The script that moves the job calls `tell_webhook` in the
same step, so no move is made without its event and no event without its move. An event is named after the job and the
state, so noting it twice is noting it once. This module does not know Redis, nor how events are delivered
(`webhooks.py`, which also lists the keys).
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from samovar_storage.jobs.records import JobSpec

HOOK_FIELD = "sv_hook"
MAX_OPEN = 100_000  # events of an API key that wait, run or failed; more are dropped and counted: Redis is everybody's

# To be put in front of a script that moves jobs. hook: the job's field `sv_hook`; false, nil or '': nothing happens.
# state: what the job came to; "started" is meant for its first attempt only. now_ms: unix ms.
TELL_WEBHOOK = f"""
local function tell_webhook(hook, job_id, state, now_ms)
  if not hook or hook == '' then return end
  local lane, endpoint, events, key_id, name, url = string.match(hook, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  if not string.find(events, ',' .. state .. ',', 1, true) then return end
  local event, open = job_id .. '.' .. state, 'sv:webhooks:open:' .. key_id
  if redis.call('EXISTS', 'sv:webhook:' .. event) == 1 then return end
  if redis.call('ZCARD', open) >= {MAX_OPEN} then
    redis.call('HINCRBY', 'sv:webhooks:dropped', key_id, 1)
    return
  end
  redis.call('HSET', 'sv:webhook:' .. event, 'job', job_id, 'state', state, 'function', name, 'key_id', key_id,
    'url', url, 'lane', lane, 'endpoint', endpoint, 'at_ms', now_ms, 'since_ms', now_ms)
  redis.call('ZADD', open, now_ms, event)
  redis.call('ZADD', 'sv:webhooks:of:' .. lane, now_ms, event)
  local not_before = redis.call('HGET', 'sv:webhooks:lane:' .. lane, 'retry_ms')
  redis.call('ZADD', 'sv:webhooks:due', 'LT', not_before or now_ms, lane)
  redis.call('PUBLISH', 'sv:ch:webhooks', lane)
end
"""


def hook_field(spec: JobSpec) -> str:
    """Return what the field `sv_hook` of a job's hash holds, "" for a job without a webhook (then it has no field)."""
    if spec.webhook is None:
        return ""
    url = spec.webhook.url
    names = lane_id(spec.key_id, url), endpoint_id(spec.key_id, url)
    return "|".join((*names, f",{','.join(spec.webhook.events)},", spec.key_id, spec.function, url))


def origin_of(url: str) -> str:
    """Return the scheme, host and port of an address."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or {'https': 443}.get(parts.scheme, 80)}"


def endpoint_of(url: str) -> str:
    """Return an address as an endpoint is known by: scheme, host, port and path, without query and fragment."""
    return origin_of(url) + (urlsplit(url).path or "/")


def lane_id(key_id: str, url: str) -> str:
    """Return the name of the queue for what an API key sends to the host of `url`: one host's silence is its own."""
    return _name(key_id, origin_of(url))


def endpoint_id(key_id: str, url: str) -> str:
    """Return the name of the endpoint that `url` is to an API key; what one key's does is no business of another's."""
    return _name(key_id, endpoint_of(url))


def _name(key_id: str, text: str) -> str:
    return hashlib.blake2b(f"{key_id} {text}".encode(), digest_size=12).hexdigest()
