-- KEYS: sv:jobs:waiting set. Returns queue, number of waiting jobs, for each queue that has some.
local reply = {}
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local length = redis.call('LLEN', 'rq:queue:' .. queue)
  if length > 0 then
    reply[#reply + 1], reply[#reply + 2] = queue, length
  end
end
return reply
