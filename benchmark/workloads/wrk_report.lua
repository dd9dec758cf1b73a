-- Has wrk write its results to the file that WRK_REPORT names, as JSON
-- with the keys that loads.py reads; latencies are in microseconds, those that
-- wrk has added included. Replies with a status above 399 are among both the
-- requests and the failures. With WRK_POST_BYTES requests are POST with a body
-- of that size.

local bytes = os.getenv("WRK_POST_BYTES")
if bytes then
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "text/plain"
  wrk.body = string.rep("x", tonumber(bytes))
end

function done(summary, latency, requests)
  local buckets = {}
  for i = 1, #latency do
    local value, count = latency(i)
    if count > 0 then
      buckets[#buckets + 1] = string.format("[%d, %d, %d]", value, value, count)
    end
  end
  local e = summary.errors
  local failures = e.connect + e.read + e.write + e.status + e.timeout
  local file = assert(io.open(os.getenv("WRK_REPORT"), "w"))
  file:write(string.format(
      '{"requests": %d, "duration_us": %d, "failures": %d, ' ..
      '"failed_statuses": %d, "max_us": %d, "histogram_us": [%s]}\n',
      summary.requests, summary.duration, failures, e.status, latency.max,
      table.concat(buckets, ", ")))
  file:close()
end
