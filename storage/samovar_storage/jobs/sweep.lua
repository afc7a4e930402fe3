-- ARGV: most jobs, then queues. Deletes their jobs that have expired; goes on with what an earlier step
-- left to do for the dependents of a job. Returns how many jobs were deleted.
local most, num_deleted = tonumber(ARGV[1]), 0

local function forget_expired(queue)
  for state in pairs(TERMINAL) do
    local left = math.max(0, most - num_deleted)
    for _, id in ipairs(call('ZRANGEBYSCORE', in_registry(state, queue), '-inf', now + LATER_S, 'LIMIT', 0, left)) do
      if forget(id, queue) then num_deleted = num_deleted + 1 end
    end
  end
end

-- the index of a queue whose registries RQ cleaned while nobody swept
local function forget_lost(queue)
  local index = 'sv:jobs:of:' .. owner_of(queue)
  for _, id in ipairs(call('ZRANGE', index, 0, 9)) do
    if call('EXISTS', job_key(id)) == 0 then forget(id, queue) end
  end
end

local function forget_queue(queue)
  local names = {'rq:queue:' .. queue}
  for _, prefix in pairs(REGISTRY) do names[#names + 1] = prefix .. queue end
  if call('EXISTS', unpack(names)) > 0 then return end
  call('SREM', 'rq:queues', 'rq:queue:' .. queue)
  call('HDEL', 'sv:jobs:seq', queue)
  call('SREM', 'sv:jobs:waiting', queue)
  local name = string.match(queue, '^sv:([^:]+)')
  if call('HGET', 'sv:jobs:running', name) == '0' then call('HDEL', 'sv:jobs:running', name) end
end

for i = 2, #ARGV do
  forget_expired(ARGV[i])
  forget_lost(ARGV[i])
  forget_queue(ARGV[i])
end
for _, group in ipairs(call('SRANDMEMBER', 'rq:groups', 10)) do
  if call('EXISTS', 'rq:group:' .. group) == 0 then call('SREM', 'rq:groups', group) end
end
local unresolved = call('LPOP', 'sv:jobs:unresolved')
if unresolved then ended[1] = {string.match(unresolved, '^(.+) (.+)$')} end
if num_deleted > 0 then count('expired', num_deleted) end
conclude()
return num_deleted
