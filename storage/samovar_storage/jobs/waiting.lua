-- KEYS: sv:jobs:waiting set. Returns queue, number of waiting jobs, for each queue that has some.
local reply = {}
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local length = redis.call('LLEN', 'rq:queue:' .. queue)
  if length > 0 then
    table.insert(reply, queue)
    table.insert(reply, length)
  else
    redis.call('SREM', KEYS[1], queue)
  end
end
return reply
