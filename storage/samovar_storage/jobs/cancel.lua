-- ARGV: ids. Returns for each of the first so many the state it is in afterwards: canceled; started, and its worker is
-- asked to stop it; "ended:" and the state it had come to before; "" for an unknown one. Looking for jobs in long queues
-- takes time: those not reached in this step are the next one's.
local function take_out_of_queue(job)
  local list = 'rq:queue:' .. job.origin
  local head = call('LINDEX', list, 0)
  local in_front = head and tonumber(job.sv_seq) - tonumber(call('HGET', job_key(head), 'sv_seq') or 0)
  local is_near_head = head and in_front <= call('LLEN', list) / 2
  call('LREM', list, is_near_head and 1 or -1, job.id)
end

local function cancel(id)
  local job = read(id)
  if not job then return '' end
  if TERMINAL[job.status] then return 'ended:' .. job.status end
  if job.status == 'started' then
    call('HSET', job_key(id), 'sv_canceling', 1)
    call('PUBLISH', 'sv:ch:jobs:cancel', id)
    return 'started'
  end
  if job.status == 'queued' then take_out_of_queue(job) else call('ZREM', in_registry(job.status, job.origin), id) end
  finish(job, 'canceled', {})
  return 'canceled'
end

local states = {}
for i, id in ipairs(ARGV) do
  states[i] = cancel(id)
  if is_over() then break end
end
conclude()
return states
