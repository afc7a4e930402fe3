-- KEYS: sv:jobs:objects zset. ARGV: most. Returns ids of jobs that are gone, whose objects are to be deleted; those of
-- jobs that live are looked at again later.
local time = redis.call('TIME')
local now, gone = tonumber(time[1]), {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now + 1, 'LIMIT', 0, ARGV[1])) do
  if redis.call('EXISTS', 'rq:job:' .. id) == 0 then
    gone[#gone + 1] = id
  else
    redis.call('ZADD', KEYS[1], now + 600, id)
  end
end
return gone
