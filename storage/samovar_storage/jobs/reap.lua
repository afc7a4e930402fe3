-- ARGV: worker, its beats as last seen, or "" when it leaves of its own. Returns the ids of the jobs put back.
local worker, beats = ARGV[1], ARGV[2]
local seen = call('HGET', 'sv:jobs:workers', worker)
if not seen or (beats ~= '' and seen ~= beats) then return {} end
local queues = call('HKEYS', 'sv:jobs:takes:' .. worker) -- it holds jobs of these alone
call('HDEL', 'sv:jobs:workers', worker)
call('DEL', 'sv:jobs:takes:' .. worker)

local function put_back(job)
  stop_running(job, job.id .. ':' .. job.sv_token)
  if job.sv_canceling then finish(job, 'canceled', {}) else enqueue(job, true) end
end

local function held_of(queue)
  local held = {}
  for _, execution in ipairs(call('ZRANGE', in_registry('started', queue), 0, -1)) do
    local job = read(string.match(execution, '^[^:]+'))
    if job and job.worker_name == worker then held[#held + 1] = job end
  end
  -- the one that came first is put back last: to the head
  table.sort(held, function(a, b) return tonumber(a.sv_seq) > tonumber(b.sv_seq) end)
  return held
end

local returned = {}
for _, queue in ipairs(queues) do
  for _, job in ipairs(held_of(queue)) do
    put_back(job)
    returned[#returned + 1] = job.id
  end
end
if #returned > 0 then count('reaped', #returned) end
conclude()
return returned
