-- ARGV: queues. Deletes their jobs that have expired. Returns how many queues it has looked at to the end, the rest being
-- the next step's, and how many jobs were deleted.
local num_deleted = 0

local TOGETHER = 100

-- Returns whether none is left.
local function forget_expired(queue)
  for state in pairs(TERMINAL) do
    local ids = call('ZRANGEBYSCORE', in_registry(state, queue), '-inf', now + LATER_S, 'LIMIT', 0, TOGETHER)
    for _, id in ipairs(ids) do
      if forget(id, queue) then num_deleted = num_deleted + 1 end
      if is_over() then return false end
    end
    if #ids == TOGETHER then return false end
  end
  return true
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
  for _, worker in ipairs(call('HKEYS', 'sv:jobs:workers')) do call('HDEL', 'sv:jobs:takes:' .. worker, queue) end
  local name = string.match(queue, '^sv:([^:]+)')
  if call('HGET', 'sv:jobs:running', name) == '0' then call('HDEL', 'sv:jobs:running', name) end
end

local num_seen = 0
for _, queue in ipairs(ARGV) do
  if not forget_expired(queue) then break end
  forget_lost(queue)
  forget_queue(queue)
  num_seen = num_seen + 1
  if is_over() then break end
end
for _, group in ipairs(call('SRANDMEMBER', 'rq:groups', 50)) do
  if call('EXISTS', 'rq:group:' .. group) == 0 then call('SREM', 'rq:groups', group) end
end
if num_deleted > 0 then count('expired', num_deleted) end
conclude()
return {num_seen, num_deleted}
