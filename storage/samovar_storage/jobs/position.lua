-- KEYS: queue. ARGV: number of a job in it. Returns by how much it is higher than that of the first.
local head = redis.call('LINDEX', KEYS[1], 0)
local first = head and redis.call('HGET', 'rq:job:' .. head, 'sv_seq')
return first and math.max(0, tonumber(ARGV[1]) - tonumber(first)) or 0
