-- The bodies in a file, one a line, posted in turn; totals and latencies (ms) as one JSON line at the end.
local bodies = {}
for line in assert(io.open(os.getenv("BENCH_BODIES"), "rb")):lines() do
  bodies[#bodies + 1] = line
end
wrk.method = "POST"
wrk.body = bodies[1]
wrk.headers["Content-Type"] = "application/json"
local authorization = os.getenv("BENCH_AUTHORIZATION")
if authorization and authorization ~= "" then
  wrk.headers["Authorization"] = authorization
end

-- with one body wrk builds the request once by itself, which costs it least
if #bodies > 1 then
  local requests, next = {}, 0
  function init()
    for i, body in ipairs(bodies) do
      requests[i] = wrk.format(nil, nil, nil, body)
    end
  end
  function request()
    next = next % #requests + 1
    return requests[next]
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_s":%.6f,"bad":%d,"socket_errors":%d,"p50_ms":%.4f,"p95_ms":%.4f,"p99_ms":%.4f,"max_ms":%.4f}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(95) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
