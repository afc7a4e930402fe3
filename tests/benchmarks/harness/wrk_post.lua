-- One fixed POST for every request; totals and latencies (ms) as one JSON line at the end.
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/json"
local authorization = os.getenv("BENCH_AUTHORIZATION")
if authorization and authorization ~= "" then
  wrk.headers["Authorization"] = authorization
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_s":%.6f,"bad":%d,"socket_errors":%d,"p50_ms":%.4f,"p95_ms":%.4f,"p99_ms":%.4f,"max_ms":%.4f}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(95) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
