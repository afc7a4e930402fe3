-- ARGV: queue, state, latest instant it may have ended at (as RQ writes it, "" = any), then ids.
-- Returns how many of these it has looked at, the rest being the next step's, and how many it has deleted.
local num_seen, num_deleted = 0, 0
for i = 4, #ARGV do
  local is_so = call('HGET', job_key(ARGV[i]), 'status') == ARGV[2]
  if is_so and forget(ARGV[i], ARGV[1], ARGV[3] ~= '' and ARGV[3]) then num_deleted = num_deleted + 1 end
  num_seen = num_seen + 1
  if is_over() then break end
end
conclude()
return {num_seen, num_deleted}
