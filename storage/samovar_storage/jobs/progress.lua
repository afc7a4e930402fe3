-- KEYS: job. ARGV: worker, token, progress (JSON). Returns 1 if the worker holds the job.
local held = redis.call('HMGET', KEYS[1], 'status', 'worker_name', 'sv_token')
if held[1] ~= 'started' or held[2] ~= ARGV[1] or held[3] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'sv_progress', ARGV[3])
return 1
