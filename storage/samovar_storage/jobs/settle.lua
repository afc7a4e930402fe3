-- ARGV: two for each settlement: (msgpack) worker, id, token, state, fields of its hash, bytes of its result or error,
-- whether its result is in object storage, due, whether at the front, whether the attempt counts, error code; its result,
-- "" if it has none or that is in object storage.
-- Returns 1 for each that was held by that worker under that token, 0 for the late ones, of which nothing changed. One
-- that comes twice is no news.
local function give_back(job, state, fields, due, at_front, counts_attempt)
  if not counts_attempt then
    fields[#fields + 1], fields[#fields + 2] = 'sv_attempt', tonumber(job.sv_attempt) - 1
  end
  if #fields > 0 then call('HSET', job_key(job.id), unpack(fields)) end
  if state == 'scheduled' then schedule(job, due) else enqueue(job, at_front) end
end

local function settle(result, worker, id, token, state, fields, size, is_stored, due, at_front, counts_attempt, code)
  local job = read(id)
  local is_last = job and job.worker_name == worker and tonumber(job.sv_token) == token
  if is_last and job.status == state and TERMINAL[state] then return 1 end -- it comes twice: its answer was lost
  if not is_last or job.status ~= 'started' then
    count('late')
    return 0
  end
  stop_running(job, id .. ':' .. token)
  if result ~= '' then fields[#fields + 1], fields[#fields + 2] = 'sv_result', result end
  if is_stored then
    job.stores_result = true
    fields[#fields + 1], fields[#fields + 2] = 'sv_stored', (job.sv_stored or '') .. 'r'
  end
  if job.sv_canceling and not TERMINAL[state] then
    finish(job, 'canceled', {})
  elseif TERMINAL[state] then
    finish(job, state, fields, size)
    if code == 'quarantined' then
      call('ZADD', 'sv:jobs:dead:' .. owner_of(job.origin), now + tonumber(job.sv_ttl or DEFAULT_TTL_S), id)
      count('quarantined')
    end
  else
    give_back(job, state, fields, due, at_front, counts_attempt)
  end
  return 1
end

local kept = {}
for i = 1, #ARGV, 2 do kept[#kept + 1] = settle(ARGV[i + 1], unpack(cmsgpack.unpack(ARGV[i]))) end
conclude()
return kept
