-- In front of every script that moves jobs: names, the clock, and what all moves do alike.
-- rq:job:{id} hash · rq:queue:{queue} list · rq:wip|scheduled|deferred|finished|failed|canceled:{queue} zset ·
-- sv:jobs:seq hash queue → last number · sv:jobs:waiting set · sv:jobs:counts hash · sv:jobs:bytes hash key id → bytes
-- of ended jobs · sv:jobs:ended hash key id → number of them ·
-- sv:jobs:group:{group} hash · sv:jobs:unique:{…} string · sv:jobs:dead:{function}:{key} zset · sv:jobs:objects zset ·
-- sv:jobs:running hash function → started jobs
local call = redis.call
local time = call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local now_ms = math.floor(now * 1000)
local TERMINAL = {finished = true, failed = true, canceled = true}
local REGISTRY = {started = 'rq:wip:', scheduled = 'rq:scheduled:', deferred = 'rq:deferred:',
  finished = 'rq:finished:', failed = 'rq:failed:', canceled = 'rq:canceled:'}
local FIELDS = {'status', 'origin', 'worker_name', 'group_id', 'created_at', 'allow_dependency_failures', 'sv_token',
  'sv_attempt', 'sv_unique', 'sv_dependents', 'sv_hook', 'sv_ttl', 'sv_input_bytes', 'sv_stored', 'sv_deadline',
  'sv_due', 'sv_canceling', 'sv_said', 'sv_seq'}
-- sweep deletes a job in time, and knows what it held; RQ's own cleaning and EXPIRE are for when nobody sweeps
local LATER_S = 3600
-- one step over many jobs leaves the rest to the next once it has computed for so long: Redis is everybody's
local MAX_STEP_S = 0.004
local began_s = os.clock()
local JOB_BYTES = 800       -- what a finished job takes beside its input and result (docs/jobs.md)
local EVENTS_S = 600
local DEFAULT_TTL_S = 86400

local function is_over() return os.clock() - began_s > MAX_STEP_S end

local function job_key(id) return 'rq:job:' .. id end

local function in_registry(state, queue) return REGISTRY[state] .. queue end

-- "sv:function:key id[:low]" → "function:key id"
local function owner_of(queue) return string.match(queue, '^sv:([^:]+:[^:]+)') end

-- An instant as RQ writes it: days to a date as in Hinnant, chrono-compatible low-level date algorithms.
local function stamp_of(instant)
  local seconds = math.floor(instant)
  local z = math.floor(seconds / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local of_day = seconds % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(of_day / 3600), math.floor(of_day / 60) % 60, of_day % 60, math.floor((instant - seconds) * 1e6))
end
local stamp = stamp_of(now)

local function read(id)
  local values = call('HMGET', job_key(id), unpack(FIELDS))
  if not values[1] then return nil end
  local job = {id = id}
  for i, name in ipairs(FIELDS) do job[name] = values[i] end
  return job
end

-- these are added up and written once, by `conclude`
local counts, bytes, num_ended, running = {}, {}, {}, {}
local function count(what, number) counts[what] = (counts[what] or 0) + (number or 1) end

local function count_running(queue, number)
  local name = string.match(queue, '^sv:([^:]+)')
  running[name] = (running[name] or 0) + number
end

local function count_group(job, from, to)
  if not job.group_id then return end
  local key = 'sv:jobs:group:' .. job.group_id
  if from then call('HINCRBY', key, from, -1) end
  call('HINCRBY', key, to, 1)
end

-- Ids as in events.py: the token of the attempt and a number. data is in the job's record, for who wants it.
local WAITING_FROM = 1e12
local function tell(job, kind, token, number)
  local event = string.format('{"id":"%d-%d","kind":"%s","at_s":%.3f}', token, number, kind, now)
  call('PUBLISH', 'sv:ch:job:' .. job.id, event)
end

local function problem(code, status, title, detail, extra)
  local document = {type = 'urn:samovar:problem:' .. code, title = title, status = status, detail = detail, code = code}
  for name, value in pairs(extra) do document[name] = value end
  return cjson.encode(document)
end

-- jobs can be taken from a queue whose list was empty before
local function announce(queue, num_pushed, length)
  if length > num_pushed then return end
  call('SADD', 'sv:jobs:waiting', queue)
  call('PUBLISH', 'sv:ch:jobs', queue)
end

local function nobody_holds(job) return job.worker_name and {'worker_name', ''} or {} end

local function enqueue(job, at_front)
  local queue, list = job.origin, 'rq:queue:' .. job.origin
  local head = at_front and call('LINDEX', list, 0)
  local seq
  if head then
    seq = tonumber(call('HGET', job_key(head), 'sv_seq') or 0) - 1
  else
    seq = call('HINCRBY', 'sv:jobs:seq', queue, 1)
  end
  call('HSET', job_key(job.id), 'status', 'queued', 'enqueued_at', stamp, 'sv_seq', seq, unpack(nobody_holds(job)))
  announce(queue, 1, call(at_front and 'LPUSH' or 'RPUSH', list, job.id))
  count_group(job, job.status, 'queued')
  tell(job, 'queued', tonumber(job.sv_token or 0), WAITING_FROM)
end

-- sv:jobs:due zset: queue → when to look at its scheduled jobs next
local function schedule(job, due)
  local at = math.min(tonumber(due), tonumber(job.sv_deadline or due))
  call('HSET', job_key(job.id), 'status', 'scheduled', 'sv_due', string.format('%.6f', tonumber(due)),
    unpack(nobody_holds(job)))
  call('ZADD', in_registry('scheduled', job.origin), at, job.id)
  call('ZADD', 'sv:jobs:due', 'LT', at, job.origin)
  count_group(job, job.status, 'scheduled')
end

local function key_id_of(queue) return string.match(queue, '^sv:[^:]+:([^:]+)') end

-- An ended job (1) of so many bytes is there, or (-1) is not any more.
local function count_ended(queue, number, size)
  local key_id = key_id_of(queue)
  bytes[key_id] = (bytes[key_id] or 0) + number * size
  num_ended[key_id] = (num_ended[key_id] or 0) + number
end

local function size_of(input_bytes, result_bytes)
  return JOB_BYTES + tonumber(input_bytes or 0) + tonumber(result_bytes or 0)
end

-- Ends a job that is in no list or registry any more. fields: more of its hash; result_bytes: of a finished one.
local ended = {} -- {id, state} of those that others wait for
local complete = {} -- group → seconds to live, of groups in which a job ended
local function finish(job, state, fields, result_bytes)
  local ttl, owner = tonumber(job.sv_ttl or DEFAULT_TTL_S), owner_of(job.origin)
  local key = job_key(job.id)
  call('HSET', key, 'status', state, 'ended_at', stamp, unpack(fields))
  if state ~= 'finished' then result_bytes = call('HSTRLEN', key, 'sv_error') end
  call('EXPIRE', key, math.ceil(ttl) + LATER_S)
  call('ZADD', in_registry(state, job.origin), now + ttl + LATER_S, job.id)
  if job.sv_stored or job.stores_result then call('ZADD', 'sv:jobs:objects', now + ttl, job.id) end
  if job.sv_unique then call('DEL', 'sv:jobs:unique:' .. owner .. ':' .. job.sv_unique) end
  if job.group_id then
    count_group(job, job.status, state)
    complete[job.group_id] = math.ceil(ttl) + LATER_S
    if state ~= 'finished' then call('HSETNX', 'sv:jobs:group:' .. job.group_id, 'unfinished', job.id) end
  end
  if job.sv_dependents then ended[#ended + 1] = {job.id, state} end
  count(state)
  count_ended(job.origin, 1, size_of(job.sv_input_bytes, result_bytes))
  tell(job, state, tonumber(job.sv_token or 0) + 1, 0)
  if job.sv_said then call('EXPIRE', 'sv:job-events:' .. job.id, EVENTS_S) end
  tell_webhook(job.sv_hook, job.id, state, now_ms)
  job.status = state
end

local function fail(job, error)
  finish(job, 'failed', {'sv_error', error})
end

local function fail_dependent(job, culprit)
  fail(job, problem('dependency_failed', 500, 'Internal Server Error',
    'the job ' .. culprit .. ', which it waited for, did not finish', {job = culprit}))
end

local function release(job)
  call('ZREM', in_registry('deferred', job.origin), job.id)
  if job.sv_due and tonumber(job.sv_due) > now then schedule(job, job.sv_due) else enqueue(job) end
end

-- A job that waits for one thing less runs once nothing is left. culprit: what did not finish, if anything.
local function wait_less(job, culprit)
  if not job or job.status ~= 'deferred' then return end
  if culprit and job.allow_dependency_failures ~= '1' then
    call('ZREM', in_registry('deferred', job.origin), job.id)
    fail_dependent(job, culprit)
  elseif call('HINCRBY', job_key(job.id), 'sv_pending', -1) <= 0 then
    release(job)
  end
end

-- Starts the reducing job of a group in which nothing is left to wait for; the group lives so long from then on.
local function reduce(group, lifetime)
  local key = 'sv:jobs:group:' .. group
  local about = call('HMGET', key, 'num_jobs', 'finished', 'failed', 'canceled', 'reduce', 'unfinished')
  local num_ended = tonumber(about[2] or 0) + tonumber(about[3] or 0) + tonumber(about[4] or 0)
  if num_ended < tonumber(about[1] or 0) then return end
  for _, name in ipairs({key, key .. ':jobs', 'rq:group:' .. group}) do call('EXPIRE', name, lifetime) end
  if about[5] and call('HSETNX', key, 'reduced', 1) == 1 then wait_less(read(about[5]), about[6]) end
end

local function stop_running(job, execution)
  call('ZREM', in_registry('started', job.origin), execution)
  count_running(job.origin, -1)
end

-- What follows from a job that ended. A step does some of it, promote goes on with the rest.
local RESOLVED_TOGETHER, RESOLVED_AT_LEAST = 10, 20
local num_resolved = 0
local function resolve(parent_id, state)
  local dependents = job_key(parent_id) .. ':dependents'
  while num_resolved < RESOLVED_AT_LEAST or not is_over() do
    local children = call('SPOP', dependents, RESOLVED_TOGETHER)
    if #children == 0 then return end
    table.sort(children) -- a set knows no order; ids rise with the time of submission
    num_resolved = num_resolved + #children
    for _, child in ipairs(children) do wait_less(read(child), state ~= 'finished' and parent_id) end
  end
  call('RPUSH', 'sv:jobs:unresolved', parent_id .. ' ' .. state)
end

local function conclude()
  while #ended > 0 or next(complete) do
    local group, lifetime = next(complete)
    if group then
      complete[group] = nil
      reduce(group, lifetime)
    else
      local parent = table.remove(ended)
      resolve(parent[1], parent[2])
    end
  end
  for what, number in pairs(counts) do call('HINCRBY', 'sv:jobs:counts', what, number) end
  for key_id, number in pairs(bytes) do
    call('HINCRBY', 'sv:jobs:bytes', key_id, number)
    if call('HINCRBY', 'sv:jobs:ended', key_id, num_ended[key_id]) <= 0 then
      for _, key in ipairs({'sv:jobs:bytes', 'sv:jobs:ended'}) do call('HDEL', key, key_id) end
    end
  end
  for name, number in pairs(running) do
    if number ~= 0 then call('HINCRBY', 'sv:jobs:running', name, number) end
  end
end
