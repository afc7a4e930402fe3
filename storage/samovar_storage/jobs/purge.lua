-- ARGV: queue, state, latest instant it may have ended at (as RQ writes it, "" = any), then ids.
-- Returns those that were deleted.
local deleted = {}
for i = 4, #ARGV do
  local is_so = call('HGET', job_key(ARGV[i]), 'status') == ARGV[2]
  if is_so and forget(ARGV[i], ARGV[1], ARGV[3] ~= '' and ARGV[3]) then deleted[#deleted + 1] = ARGV[i] end
end
conclude()
return deleted
