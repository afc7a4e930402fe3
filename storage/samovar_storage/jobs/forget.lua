-- In front of the scripts that delete jobs that have ended.
local GONE = {'status', 'origin', 'group_id', 'ended_at', 'sv_input_bytes', 'sv_result_bytes', 'sv_stored'}

local function forget_id(id, queue)
  call('ZREM', 'sv:jobs:of:' .. owner_of(queue), id)
  for state in pairs(TERMINAL) do call('ZREM', in_registry(state, queue), id) end
  call('UNLINK', job_key(id), job_key(id) .. ':dependents', 'sv:job-events:' .. id)
end

-- queue: it waited in. Deletes a job that has ended, or is gone already. Returns whether it did.
local function forget(id, queue, ended_before)
  local values = call('HMGET', job_key(id), unpack(GONE))
  local job = {origin = queue}
  for i, name in ipairs(GONE) do if values[i] then job[name] = values[i] end end
  if job.status and not TERMINAL[job.status] then return false end
  if ended_before and job.ended_at and job.ended_at > ended_before then return false end
  local size = job.sv_result_bytes
  if job.status and job.status ~= 'finished' then size = call('HSTRLEN', job_key(id), 'sv_error') end
  count_bytes(job, -size_of(job.sv_input_bytes, size))
  if job.status == 'failed' then call('ZREM', 'sv:jobs:dead:' .. owner_of(queue), id) end
  if job.group_id then call('SREM', 'rq:group:' .. job.group_id, id) end
  if job.sv_stored then call('ZADD', 'sv:jobs:objects', now, id) end
  forget_id(id, queue)
  return true
end
