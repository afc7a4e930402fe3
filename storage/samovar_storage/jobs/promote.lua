-- ARGV: most jobs. Returns how many scheduled jobs were due: queued, or failed because their deadline passed.
local left = tonumber(ARGV[1])
local most = left

local function promote(job)
  if job.sv_deadline and tonumber(job.sv_deadline) <= now then
    fail(job, problem('deadline_exceeded', 504, 'Gateway Timeout', 'its deadline passed while it waited',
      {phase = 'queue'}))
  else
    enqueue(job)
  end
end

for _, queue in ipairs(call('ZRANGEBYSCORE', 'sv:jobs:due', '-inf', now, 'LIMIT', 0, 100)) do
  local scheduled = in_registry('scheduled', queue)
  for _, id in ipairs(call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, left)) do
    call('ZREM', scheduled, id)
    local job = read(id)
    if job and job.status == 'scheduled' then promote(job) end
    left = left - 1
  end
  local head = call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  if head[2] then call('ZADD', 'sv:jobs:due', head[2], queue) else call('ZREM', 'sv:jobs:due', queue) end
  if left <= 0 then break end
end
conclude()
return most - left
