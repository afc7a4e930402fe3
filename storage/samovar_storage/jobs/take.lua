-- ARGV: queue, worker, most, number of this take, and how many jobs may run of the function, and of function and key,
-- "" = any number. sv:jobs:takes:{worker} hash: queue → number of the last take, and `alive`. sv:jobs:running hash.
-- Returns one {id, fields as they were, token, attempt} for each job the worker holds now. A take that comes twice
-- (its answer was lost) returns all that the worker holds of the queue: the caller knows which of them are news to it.
local queue, worker, most, number = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local list, started, takes = 'rq:queue:' .. queue, in_registry('started', queue), 'sv:jobs:takes:' .. worker
local alive, last_take = unpack(call('HMGET', takes, 'alive', queue))
if not alive then return {} end

local function fields_of(id)
  local flat, job = call('HGETALL', job_key(id)), {id = id}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  return job.status and job, flat
end

if last_take == number then
  local held = {}
  for _, execution in ipairs(call('ZRANGE', started, 0, -1)) do
    local id = string.match(execution, '^[^:]+')
    local job, flat = fields_of(id)
    if job and job.worker_name == worker then
      held[#held + 1] = {id, flat, tonumber(job.sv_token), tonumber(job.sv_attempt)}
    end
  end
  return held
end
-- one that was given up and comes after its successor: nobody would hear what it took
if last_take and tonumber(last_take) > tonumber(number) then return {} end
call('HSET', takes, queue, number)

-- how many may be started without more than the caps allow
local function within_caps()
  local allowed, function_name, owner = most, string.match(queue, '^sv:([^:]+)'), 'sv:' .. owner_of(queue)
  if ARGV[5] ~= '' then
    allowed = math.min(allowed, tonumber(ARGV[5]) - tonumber(call('HGET', 'sv:jobs:running', function_name) or 0))
  end
  if ARGV[6] ~= '' then
    local of_key = call('ZCARD', in_registry('started', owner)) + call('ZCARD', in_registry('started', owner .. ':low'))
    allowed = math.min(allowed, tonumber(ARGV[6]) - of_key)
  end
  return math.max(0, allowed)
end
most = within_caps()

local function start(job)
  local token, attempt = tonumber(job.sv_token or 0) + 1, tonumber(job.sv_attempt or 0) + 1
  call('HSET', job_key(job.id), 'status', 'started', 'started_at', stamp, 'worker_name', worker, 'sv_token', token,
    'sv_attempt', attempt)
  if job.sv_progress then call('HDEL', job_key(job.id), 'sv_progress') end
  call('ZADD', started, '+inf', job.id .. ':' .. token)
  count_group(job, 'queued', 'started')
  tell(job, 'started', token, 0)
  if token == 1 then tell_webhook(job.sv_hook, job.id, 'started', now_ms) end
  return token, attempt
end

local taken = {}
while #taken < most and not is_over() do
  local ids = call('LPOP', list, most - #taken)
  if not ids then break end
  for _, id in ipairs(ids) do
    local job, flat = fields_of(id)
    if job and job.status == 'queued' then
      if job.sv_deadline and tonumber(job.sv_deadline) <= now then
        fail(job, problem('deadline_exceeded', 504, 'Gateway Timeout', 'its deadline passed while it waited',
          {phase = 'queue'}))
      else
        local token, attempt = start(job)
        taken[#taken + 1] = {id, flat, token, attempt}
      end
    end
  end
end
count_running(queue, #taken)
if call('EXISTS', list) == 0 then
  call('SREM', 'sv:jobs:waiting', queue)
elseif #taken < most then
  call('PUBLISH', 'sv:ch:jobs', queue) -- many had expired: there is more
end
conclude()
return taken
