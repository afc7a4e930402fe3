"""The seam between jobs and webhooks: what a job's hash says of its webhook, and the Lua that notes an event.

A job with a webhook has the field `sv_hook` (`hook_field`). The script that moves the job calls `tell_webhook` in the
same step, so no move is made without its event and no event without its move. An event is named after the job and the
state, so noting it twice is noting it once. Endpoints are told apart by API key, too: what one key's endpoint does is
no business of another's. This module does not know Redis, nor how events are delivered (`webhooks.py`).
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from samovar_storage.jobs.records import JobSpec

HOOK_FIELD = "sv_hook"
MAX_WAITING_PER_ENDPOINT = 100_000  # what comes on top is dropped and counted: Redis is everybody's

# To be put in front of a script that moves jobs. `hook` is the job's field `sv_hook`, or false: then nothing happens.
# state: what the job came to; "started" is told of its first attempt only. now_ms: unix ms.
# Keys: sv:webhook:{event} hash; sv:webhooks:of:{endpoint} zset event → due; sv:webhooks:due zset endpoint → due;
# sv:webhooks:endpoint:{endpoint} hash; sv:webhooks:dead:{endpoint} zset event → when it was given up;
# sv:webhooks:key:{key id} set of endpoints.
TELL_WEBHOOK = f"""
local function tell_webhook(hook, job_id, state, now_ms)
  if not hook then return end
  local endpoint, events, key_id, name, url = string.match(hook, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  if not string.find(events, ',' .. state .. ',', 1, true) then return end
  local event, about = job_id .. '.' .. state, 'sv:webhooks:endpoint:' .. endpoint
  if redis.call('EXISTS', 'sv:webhook:' .. event) == 1 then return end
  local waiting = 'sv:webhooks:of:' .. endpoint
  if redis.call('ZCARD', waiting) >= {MAX_WAITING_PER_ENDPOINT} then
    redis.call('HINCRBY', about, 'dropped', 1)
    return
  end
  redis.call('HSET', 'sv:webhook:' .. event, 'job', job_id, 'state', state, 'at_ms', now_ms, 'function', name,
    'key', key_id, 'url', url, 'endpoint', endpoint)
  redis.call('SADD', 'sv:webhooks:key:' .. key_id, endpoint)
  if redis.call('HEXISTS', about, 'disabled_ms') == 1 then waiting = 'sv:webhooks:dead:' .. endpoint end
  redis.call('ZADD', waiting, now_ms, event)
  if redis.call('HEXISTS', about, 'disabled_ms') == 0 then
    if redis.call('HEXISTS', about, 'failing_ms') == 0 then redis.call('ZADD', 'sv:webhooks:due', 'LT', now_ms, endpoint) end
    redis.call('PUBLISH', 'sv:ch:webhooks', endpoint)
  end
end
"""


def hook_field(spec: JobSpec) -> str:
    """Return what the field `sv_hook` of a job's hash holds, "" for a job without a webhook (then it has no field)."""
    if spec.webhook is None:
        return ""
    events = f",{','.join(spec.webhook.events)},"
    endpoint = endpoint_id(spec.key_id, spec.webhook.url)
    return "|".join((endpoint, events, spec.key_id, spec.function, spec.webhook.url))


def endpoint_of(url: str) -> str:
    """Return an address as an endpoint is known by: scheme, host, port and path, without query and fragment."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    return f"{parts.scheme}://{host}:{port}{parts.path or '/'}"


def endpoint_id(key_id: str, url: str) -> str:
    """Return the name of the endpoint that `url` is to an API key."""
    return hashlib.blake2b(f"{key_id} {endpoint_of(url)}".encode(), digest_size=12).hexdigest()
