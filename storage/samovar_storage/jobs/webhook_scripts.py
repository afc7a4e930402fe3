"""The Lua of webhook deliveries: each move of an event is one script. Times are Redis's own, unix milliseconds.

| key                          | type | what it holds
|------------------------------|------|-------------------------------------------------------------------------------
| sv:webhooks:due              | zset | lane → when something of it may be sent next
| sv:webhooks:of:{lane}        | zset | event → when it may be sent: those that wait
| sv:webhooks:leased:{lane}    | zset | event → when its lease ends: those that are being sent
| sv:webhooks:lane:{lane}      | hash | failures, retry_ms: only while its host does not answer
| sv:webhooks:endpoint:{id}    | hash | url, key_id, failures, failing_ms, last_error, disabled_ms, why: only while it fails
| sv:webhooks:ends:{key id}    | set  | those endpoints of an API key
| sv:webhooks:open:{key id}    | zset | event → when it came about: all that are not delivered
| sv:webhooks:dead:{key id}    | zset | event → when it was given up
| sv:webhooks:dropped          | hash | key id → events that were not noted, too many being open
| sv:webhook:{event}           | hash | job, state, function, key_id, url, lane, endpoint, at_ms, since_ms; attempts, last_error,
|                              |      | body, lease, dead_ms as they come about

This module does not know HTTP.
"""

# ruff: noqa: E501 - one table row per key
from __future__ import annotations

from samovar_storage.jobs.hooks import HOOK_FIELD, TELL_WEBHOOK

DEAD_MS = 7 * 86_400_000
MAX_DEAD = 10_000  # of an API key; the oldest leave first
LANE_CAP = 8  # being sent to one host for one API key at a time
_MAX_ASIDE = 100  # events of disabled endpoints put aside in one step

_COMMON = f"""#!lua flags=allow-oom
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function count(what) redis.call('HINCRBY', 'sv:jobs:counts', 'webhooks_' .. what, 1) end
local function first(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return found[1], tonumber(found[2])
end
local function room(lane)
  local cap = redis.call('EXISTS', 'sv:webhooks:lane:' .. lane) == 1 and 1 or {LANE_CAP}
  return cap - redis.call('ZCARD', 'sv:webhooks:leased:' .. lane)
end
local function schedule(lane)
  local _, at = first('sv:webhooks:leased:' .. lane)
  if room(lane) > 0 then
    local _, due = first('sv:webhooks:of:' .. lane)
    if due then
      due = math.max(due, now, tonumber(redis.call('HGET', 'sv:webhooks:lane:' .. lane, 'retry_ms') or '0'))
      at = math.min(at or due, due)
    end
  end
  if at then redis.call('ZADD', 'sv:webhooks:due', at, lane) else redis.call('ZREM', 'sv:webhooks:due', lane) end
end
local function bury(event, why)
  local key_id = redis.call('HGET', 'sv:webhook:' .. event, 'key_id')
  if not key_id then return end
  local dead, open = 'sv:webhooks:dead:' .. key_id, 'sv:webhooks:open:' .. key_id
  redis.call('HSET', 'sv:webhook:' .. event, 'dead_ms', now)
  if why ~= '' then redis.call('HSET', 'sv:webhook:' .. event, 'last_error', why) end
  redis.call('PEXPIRE', 'sv:webhook:' .. event, {DEAD_MS})
  redis.call('ZADD', dead, now, event)
  local old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - {DEAD_MS}, 'LIMIT', 0, 100)
  if #old == 0 and redis.call('ZCARD', dead) > {MAX_DEAD} then old = redis.call('ZRANGE', dead, 0, 0) end
  for _, id in ipairs(old) do
    redis.call('ZREM', dead, id)
    redis.call('ZREM', open, id)
    redis.call('DEL', 'sv:webhook:' .. id)
  end
end
local function wake(event)
  local about = redis.call('HMGET', 'sv:webhook:' .. event, 'key_id', 'lane', 'endpoint', 'lease')
  if not about[1] or about[4] then return 0 end
  if redis.call('HEXISTS', 'sv:webhooks:endpoint:' .. about[3], 'disabled_ms') == 1 then return 0 end
  redis.call('PERSIST', 'sv:webhook:' .. event)
  redis.call('HDEL', 'sv:webhook:' .. event, 'dead_ms')
  redis.call('HSET', 'sv:webhook:' .. event, 'since_ms', now)
  redis.call('HDEL', 'sv:webhooks:lane:' .. about[2], 'retry_ms')
  redis.call('ZREM', 'sv:webhooks:dead:' .. about[1], event)
  redis.call('ZADD', 'sv:webhooks:of:' .. about[2], now, event)
  schedule(about[2])
  redis.call('PUBLISH', 'sv:ch:webhooks', about[2])
  return 1
end
"""

# ARGV: lease token, lease ms, most. Returns up to `most` events that are leased now, at most one of each lane: id,
# how often its host did not answer lately, fields.
CLAIM = (
    _COMMON
    + f"""
local found = {{}}
for _, lane in ipairs(redis.call('ZRANGEBYSCORE', 'sv:webhooks:due', '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local waiting, leased = 'sv:webhooks:of:' .. lane, 'sv:webhooks:leased:' .. lane
  for _, event in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', now)) do
    redis.call('ZREM', leased, event)
    redis.call('ZADD', waiting, now, event)
  end
  if room(lane) > 0 then
    for _, event in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, {_MAX_ASIDE})) do
      redis.call('ZREM', waiting, event)
      local key = 'sv:webhook:' .. event
      local endpoint = redis.call('HGET', key, 'endpoint')
      if endpoint and redis.call('HEXISTS', 'sv:webhooks:endpoint:' .. endpoint, 'disabled_ms') == 1 then
        bury(event, '')
      elseif endpoint then
        redis.call('ZADD', leased, now + ARGV[2], event)
        redis.call('HSET', key, 'lease', ARGV[1])
        local failures = redis.call('HGET', 'sv:webhooks:lane:' .. lane, 'failures') or '0'
        found[#found + 1] = {{event, failures, redis.call('HGETALL', key)}}
        break
      end
    end
  end
  schedule(lane)
end
return found
"""
)

# ARGV: lease token, lease ms, events. Their leases last that long from now on, as far as they are held under the token.
RENEW = (
    _COMMON
    + """
for at = 3, #ARGV do
  local about = redis.call('HMGET', 'sv:webhook:' .. ARGV[at], 'lease', 'lane')
  if about[1] == ARGV[1] then
    redis.call('ZADD', 'sv:webhooks:leased:' .. about[2], 'XX', now + ARGV[2], ARGV[at])
  end
end
return #ARGV - 2
"""
)

# ARGV: event, lease token. Returns 1 if it was held.
DELIVERED = (
    _COMMON
    + """
local key = 'sv:webhook:' .. ARGV[1]
local about = redis.call('HMGET', key, 'lease', 'lane', 'endpoint', 'key_id')
if about[1] ~= ARGV[2] then return 0 end
redis.call('ZREM', 'sv:webhooks:leased:' .. about[2], ARGV[1])
redis.call('ZREM', 'sv:webhooks:open:' .. about[4], ARGV[1])
redis.call('DEL', key, 'sv:webhooks:lane:' .. about[2], 'sv:webhooks:endpoint:' .. about[3])
redis.call('SREM', 'sv:webhooks:ends:' .. about[4], about[3])
schedule(about[2])
count('delivered')
return 1
"""
)

# ARGV: event, lease token, ms until the event's next attempt, ms in which nothing goes to its host ('0': others may),
# error, body, endpoint's address, ms after which an event is given up and an endpoint disabled, '1' = disable it now.
# Returns '' (not held), 'retry', 'dead', or 'disabled' (and dead).
FAILED = (
    _COMMON
    + f"""
local key = 'sv:webhook:' .. ARGV[1]
local about = redis.call('HMGET', key, 'lease', 'lane', 'endpoint', 'key_id', 'since_ms')
if about[1] ~= ARGV[2] then return '' end
local lane, endpoint = about[2], 'sv:webhooks:endpoint:' .. about[3]
redis.call('ZREM', 'sv:webhooks:leased:' .. lane, ARGV[1])
redis.call('HDEL', key, 'lease')
redis.call('HSET', key, 'last_error', ARGV[5], 'body', ARGV[6])
redis.call('HINCRBY', key, 'attempts', 1)
if tonumber(ARGV[4]) > 0 then
  redis.call('HSET', 'sv:webhooks:lane:' .. lane, 'retry_ms', now + ARGV[4])
  redis.call('HINCRBY', 'sv:webhooks:lane:' .. lane, 'failures', 1)
  redis.call('PEXPIRE', 'sv:webhooks:lane:' .. lane, {DEAD_MS})
else
  redis.call('DEL', 'sv:webhooks:lane:' .. lane)
end
redis.call('SADD', 'sv:webhooks:ends:' .. about[4], about[3])
redis.call('HSETNX', endpoint, 'failing_ms', now)
redis.call('HSET', endpoint, 'url', ARGV[7], 'key_id', about[4], 'last_error', ARGV[5])
redis.call('HINCRBY', endpoint, 'failures', 1)
redis.call('PEXPIRE', endpoint, {DEAD_MS})
local said = 'retry'
local for_ms = now - redis.call('HGET', endpoint, 'failing_ms')
if ARGV[9] == '1' or for_ms >= tonumber(ARGV[8]) then
  if redis.call('HSETNX', endpoint, 'disabled_ms', now) == 1 then said = 'disabled' else said = 'dead' end
elseif now + ARGV[3] - about[5] > tonumber(ARGV[8]) then
  said = 'dead'
end
if said == 'retry' then
  redis.call('ZADD', 'sv:webhooks:of:' .. lane, now + ARGV[3], ARGV[1])
else
  bury(ARGV[1], '')
end
schedule(lane)
count('failed')
if said ~= 'retry' then count('dead') end
if said == 'disabled' then count('disabled') end
return said
"""
)

# ARGV: lease token, ms to wait, events. Those held under the token wait again, as if they had not been claimed.
RELEASE = (
    _COMMON
    + """
for at = 3, #ARGV do
  local about = redis.call('HMGET', 'sv:webhook:' .. ARGV[at], 'lease', 'lane')
  if about[1] == ARGV[1] then
    redis.call('HDEL', 'sv:webhook:' .. ARGV[at], 'lease')
    redis.call('ZREM', 'sv:webhooks:leased:' .. about[2], ARGV[at])
    redis.call('ZADD', 'sv:webhooks:of:' .. about[2], now + ARGV[2], ARGV[at])
    schedule(about[2])
  end
end
return 0
"""
)

# KEYS: a job. ARGV: an event of it, the job's id, the state it tells of. It is sent now, and again if it was delivered;
# returns 1, or 0 if there is nothing to send, it is being sent, or its endpoint is disabled.
REPLAY = (
    _COMMON
    + TELL_WEBHOOK
    + f"""
if redis.call('EXISTS', 'sv:webhook:' .. ARGV[1]) == 0 then
  local about = redis.call('HMGET', KEYS[1], '{HOOK_FIELD}', 'status')
  if about[2] ~= ARGV[3] then return 0 end
  tell_webhook(about[1], ARGV[2], ARGV[3], now)
end
return wake(ARGV[1])
"""
)

# ARGV: key id, endpoint. It is not disabled any more; returns 1 if it was.
ENABLE = (
    _COMMON
    + """
local about = 'sv:webhooks:endpoint:' .. ARGV[2]
if redis.call('HDEL', about, 'disabled_ms') == 0 then return 0 end
redis.call('DEL', about)
redis.call('SREM', 'sv:webhooks:ends:' .. ARGV[1], ARGV[2])
return 1
"""
)

# ARGV: endpoint, events. Those of the endpoint that were given up wait again, unless it is disabled; returns how many.
WAKE = (
    _COMMON
    + """
local woken = 0
for at = 2, #ARGV do
  local about = redis.call('HMGET', 'sv:webhook:' .. ARGV[at], 'endpoint', 'dead_ms')
  if about[1] == ARGV[1] and about[2] then woken = woken + wake(ARGV[at]) end
end
return woken
"""
)
