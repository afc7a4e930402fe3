-- KEYS: sv:jobs:objects zset. ARGV: job, seconds. Objects of the job are looked for that much later, if not before.
local time = redis.call('TIME')
return redis.call('ZADD', KEYS[1], 'NX', tonumber(time[1]) + tonumber(ARGV[2]), ARGV[1])
