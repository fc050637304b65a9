-- Writes of the version board that must be one step; each call is atomic on the server.
--
-- append:  KEYS[1]  paceline:{speculator}:events              stream  field event: one BoardEvent as JSON
-- beat:    KEYS[1]  paceline:{speculator}:heartbeat:{member}  string  status as JSON, with a TTL
--          KEYS[2]  paceline:{speculator}:members             zset    member -> unix ms at which its heartbeat expires
--          KEYS[3]  paceline:{speculator}:last_reading:{member}  string  the same status, with a longer TTL
-- ARGV[1]  verb, one of the functions of `verbs`
-- ARGV[2+] arguments of the verb

local verbs = {}

-- last ('' for none), event... -> ids; none when `last` is not the newest event, because of a write in between
function verbs.append()
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if (newest and newest[1] or '') ~= ARGV[2] then return {} end
  local ids = {}
  for i = 3, #ARGV do ids[#ids + 1] = redis.call('XADD', KEYS[1], '*', 'event', ARGV[i]) end
  return ids
end

-- member, ttl in ms, status, ms for which the status is remembered
function verbs.beat()
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
  redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
  redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[3]), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. string.format('%.0f', now_ms))
  return 1
end

return verbs[ARGV[1]]()
