-- In front of the scripts that delete jobs that have ended.
local GONE = {'status', 'origin', 'group_id', 'ended_at', 'sv_input_bytes', 'sv_result_bytes', 'sv_stored'}

local function forget_id(id, queue)
  call('ZREM', 'sv:jobs:of:' .. owner_of(queue), id)
  for state in pairs(TERMINAL) do call('ZREM', in_registry(state, queue), id) end
  -- who waits for it stays: promote may not have come to them yet, and takes them out one by one
  call('UNLINK', job_key(id), 'sv:job-events:' .. id)
end

-- The bytes of an ended job, given what is left of its hash. Of one that nobody swept in time that is nothing, and it is
-- taken for an average one: when the last is gone, all bytes are.
local function bytes_of(id, job, queue)
  if job.status then
    local result_bytes = job.status == 'finished' and job.sv_result_bytes or call('HSTRLEN', job_key(id), 'sv_error')
    return size_of(job.sv_input_bytes, result_bytes)
  end
  local key_id = key_id_of(queue)
  local total = tonumber(call('HGET', 'sv:jobs:bytes', key_id) or 0) + (bytes[key_id] or 0)
  local number = tonumber(call('HGET', 'sv:jobs:ended', key_id) or 0) + (num_ended[key_id] or 0)
  return math.floor(total / math.max(1, number))
end

-- queue: it waited in. Deletes a job that has ended, or is gone already. Returns whether it did.
local function forget(id, queue, ended_before)
  local values = call('HMGET', job_key(id), unpack(GONE))
  local job = {origin = queue}
  for i, name in ipairs(GONE) do if values[i] then job[name] = values[i] end end
  if job.status and not TERMINAL[job.status] then return false end
  if ended_before and job.ended_at and job.ended_at > ended_before then return false end
  count_ended(queue, -1, bytes_of(id, job, queue))
  if not job.status or job.status == 'failed' then call('ZREM', 'sv:jobs:dead:' .. owner_of(queue), id) end
  if job.group_id then call('SREM', 'rq:group:' .. job.group_id, id) end
  if job.sv_stored then call('ZADD', 'sv:jobs:objects', now, id) end
  forget_id(id, queue)
  return true
end
