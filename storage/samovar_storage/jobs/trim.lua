-- ARGV: API key, most bytes of its ended jobs, then its queues. Deletes the jobs that expire first until the rest fits, or
-- the step has taken long enough. Returns how many were deleted.
local key_id, max_bytes = ARGV[1], tonumber(ARGV[2])
local heads = {}

local function first_of(registry)
  local head = call('ZRANGE', registry, 0, 0, 'WITHSCORES')
  return head[1] and {id = head[1], score = tonumber(head[2])}
end

for i = 3, #ARGV do
  for state in pairs(TERMINAL) do
    local registry = in_registry(state, ARGV[i])
    heads[#heads + 1] = {registry = registry, queue = ARGV[i], first = first_of(registry)}
  end
end

local function next_head()
  local chosen
  for _, head in ipairs(heads) do
    if head.first and (not chosen or head.first.score < chosen.first.score) then chosen = head end
  end
  return chosen
end

local total = tonumber(call('HGET', 'sv:jobs:bytes', key_id) or 0)
local num_deleted = 0
while not is_over() and total + (bytes[key_id] or 0) > max_bytes do
  local head = next_head()
  if not head then break end
  forget(head.first.id, head.queue)
  call('ZREM', head.registry, head.first.id)
  head.first = first_of(head.registry)
  num_deleted = num_deleted + 1
end
if num_deleted > 0 then count('expired', num_deleted) end
conclude()
return num_deleted
