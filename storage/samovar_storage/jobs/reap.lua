-- ARGV: worker, its beats as last seen, or "" when it leaves of its own. Returns the ids of the jobs put back.
local worker, beats = ARGV[1], ARGV[2]
local seen = call('HGET', 'sv:jobs:workers', worker)
if not seen or (beats ~= '' and seen ~= beats) then return {} end
call('HDEL', 'sv:jobs:workers', worker)
call('DEL', 'sv:jobs:takes:' .. worker)

local function put_back(job, execution)
  stop_running(job, execution)
  if job.sv_canceling then finish(job, 'canceled', {}) else enqueue(job, true) end
end

local returned = {}
for _, key in ipairs(call('SMEMBERS', 'rq:queues')) do
  local queue = string.sub(key, #'rq:queue:' + 1)
  local executions = call('ZREVRANGE', in_registry('started', queue), 0, -1) -- the oldest is put back last: to the head
  for _, execution in ipairs(executions) do
    local job = read(string.match(execution, '^[^:]+'))
    if job and job.worker_name == worker then
      put_back(job, execution)
      returned[#returned + 1] = job.id
    end
  end
end
if #returned > 0 then count('reaped', #returned) end
conclude()
return returned
