-- Behind `submit`, made a function. KEYS: sv:cron:{name}. ARGV: (msgpack) what its `last` must be, fields it gets; then
-- jobs as for `submit`, or none.
-- Returns {"late"}: another was faster, or the cron job was changed or deleted, and nothing was done; else as `submit`.
local expected, fields = unpack(cmsgpack.unpack(table.remove(ARGV, 1)))
if call('HGET', KEYS[1], 'last') ~= expected then return {'late'} end
local said = #ARGV > 0 and submit() or {'accepted'}
if said[1] == 'accepted' then call('HSET', KEYS[1], unpack(fields)) end
return said
