-- ARGV: three for each job: (msgpack) id, queue, fields of its hash, due, unique, dependencies, group, group it reduces;
-- its call as RQ writes it; its input, "" if that is in object storage.
-- Returns {"accepted", ids that were not known}; {"not_unique", id of the holder} or {"unknown", dependency}, and nothing changed.
local jobs, known = {}, {}
for i = 1, #ARGV, 3 do
  local id, queue, fields, due, unique, dependencies, group, reduce_of = unpack(cmsgpack.unpack(ARGV[i]))
  jobs[#jobs + 1] = {id = id, origin = queue, fields = fields, due = due, unique = unique, dependencies = dependencies,
    group = group, reduce_of = reduce_of, data = ARGV[i + 1], input = ARGV[i + 2]}
end

local function refusal()
  local taken = {}
  for _, job in ipairs(jobs) do
    local needs_check = job.unique ~= '' or #job.dependencies > 0
    if needs_check and call('EXISTS', job_key(job.id)) == 0 then
      local name = owner_of(job.origin) .. ':' .. job.unique
      local holder = job.unique ~= '' and (taken[name] or call('GET', 'sv:jobs:unique:' .. name))
      if holder then return {'not_unique', holder} end
      taken[name] = job.id
      for _, parent in ipairs(job.dependencies) do
        local state = known[parent] or call('HGET', job_key(parent), 'status')
        if not state then return {'unknown', parent} end
      end
    end
    known[job.id] = true
  end
end

-- Returns the number of jobs it waits for, and one that did not finish although it had to.
local function depend(job, allow_failed)
  local pending, culprit = 0, nil
  for _, parent in ipairs(job.dependencies) do
    local state = call('HGET', job_key(parent), 'status') -- none: it is accepted in this step, and not written yet
    if not TERMINAL[state] then
      pending = pending + call('SADD', job_key(parent) .. ':dependents', job.id)
      call('HSET', job_key(parent), 'sv_dependents', 1)
    elseif state ~= 'finished' and not allow_failed then
      culprit = parent
    end
  end
  return pending, culprit
end

local refused = refusal()
if refused then return refused end

-- Notes in which state a job begins.
local function place(job)
  for i = 1, #job.fields, 2 do
    if job.fields[i] == 'allow_dependency_failures' then job.allow_failed = true end
  end
  job.pending, job.culprit = depend(job, job.allow_failed)
  if job.reduce_of ~= '' then job.pending = job.pending + 1 end
  local waits = job.pending > 0 or job.culprit
  job.state = waits and 'deferred' or (job.due > now and 'scheduled' or 'queued')
end

local function write(job, seq)
  local fields = job.fields
  local function also(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if job.input ~= '' then also('sv_input', job.input) end
  if job.pending > 0 then also('sv_pending', job.pending) end
  if seq then
    also('sv_seq', seq)
    also('enqueued_at', stamp)
  end
  call('HSET', job_key(job.id), 'status', job.state, 'data', job.data, unpack(fields))
  if job.unique ~= '' then call('SET', 'sv:jobs:unique:' .. owner_of(job.origin) .. ':' .. job.unique, job.id) end
end

local groups = {}
local function join_group(job)
  local group = groups[job.group] or {ids = {}, owner = owner_of(job.origin), states = {}}
  groups[job.group] = group
  table.insert(group.ids, job.id)
  group.states[job.state] = (group.states[job.state] or 0) + 1
end

local function put_aside(job)
  write(job)
  call('SADD', 'rq:queues', 'rq:queue:' .. job.origin)
  if job.state == 'scheduled' then
    schedule(read(job.id), job.due)
  else
    call('ZADD', in_registry('deferred', job.origin), now, job.id)
  end
  if job.reduce_of ~= '' then
    call('HSET', 'sv:jobs:group:' .. job.reduce_of, 'reduce', job.id)
    call('HDEL', 'sv:jobs:group:' .. job.reduce_of, 'reduced')
    complete[job.reduce_of] = DEFAULT_TTL_S + LATER_S
  end
  if job.culprit then
    local failing = read(job.id)
    call('ZREM', in_registry('deferred', job.origin), job.id)
    fail_dependent(failing, job.culprit)
  end
end

local accepted, lists = {'accepted'}, {}
for _, job in ipairs(jobs) do
  if call('ZADD', 'sv:jobs:of:' .. owner_of(job.origin), 0, job.id) == 1 then
    accepted[#accepted + 1] = job.id
    place(job)
    if job.group ~= '' then join_group(job) end
    if job.state == 'queued' then
      lists[job.origin] = lists[job.origin] or {}
      table.insert(lists[job.origin], job)
    else
      put_aside(job)
    end
  end
end

for queue, waiting in pairs(lists) do
  local last, ids = call('HINCRBY', 'sv:jobs:seq', queue, #waiting), {}
  for i, job in ipairs(waiting) do
    write(job, last - #waiting + i)
    ids[i] = job.id
  end
  if last == #ids then call('SADD', 'rq:queues', 'rq:queue:' .. queue) end
  announce(queue, #ids, call('RPUSH', 'rq:queue:' .. queue, unpack(ids)))
end

for name, group in pairs(groups) do
  local key = 'sv:jobs:group:' .. name
  if call('HSETNX', key, 'owner', group.owner) == 1 then call('HSET', key, 'created_at', stamp) end
  call('HINCRBY', key, 'num_jobs', #group.ids)
  for state, number in pairs(group.states) do call('HINCRBY', key, state, number) end
  call('RPUSH', key .. ':jobs', unpack(group.ids))
  call('SADD', 'rq:group:' .. name, unpack(group.ids))
  for _, each in ipairs({key, key .. ':jobs', 'rq:group:' .. name}) do call('PERSIST', each) end
  call('SADD', 'rq:groups', name)
end

if #accepted > 1 then count('accepted', #accepted - 1) end
conclude()
return accepted
