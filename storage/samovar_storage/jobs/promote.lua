-- Queues scheduled jobs that are due, or fails them because their deadline passed; goes on with what an earlier step
-- left to do for the dependents of a job. Returns how many jobs that were; 0 = nothing is left.
local num_moved = 0

local function promote(job)
  if job.sv_deadline and tonumber(job.sv_deadline) <= now then
    fail(job, problem('deadline_exceeded', 504, 'Gateway Timeout', 'its deadline passed while it waited',
      {phase = 'queue'}))
  else
    enqueue(job)
  end
end

local function promote_due(queue)
  local scheduled = in_registry('scheduled', queue)
  for _, id in ipairs(call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, 100)) do
    call('ZREM', scheduled, id)
    local job = read(id)
    if job and job.status == 'scheduled' then promote(job) end
    num_moved = num_moved + 1
    if is_over() then break end
  end
  local head = call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  if head[2] then call('ZADD', 'sv:jobs:due', head[2], queue) else call('ZREM', 'sv:jobs:due', queue) end
end

local unresolved = call('LPOP', 'sv:jobs:unresolved')
if unresolved then
  ended[1] = {string.match(unresolved, '^(.+) (.+)$')}
  num_moved = 1
else
  for _, queue in ipairs(call('ZRANGEBYSCORE', 'sv:jobs:due', '-inf', now, 'LIMIT', 0, 100)) do
    promote_due(queue)
    if is_over() then break end
  end
end
conclude()
return num_moved
