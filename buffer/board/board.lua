-- Writes of the version board that must be one step; each call is atomic on the server.
--
-- append:  KEYS[1]  paceline:{speculator}:events              stream  field event: one BoardEvent as JSON
-- beat:    KEYS[1]  paceline:{speculator}:heartbeat:{member}  string  status as JSON, with a TTL
--          KEYS[2]  paceline:{speculator}:members             zset    member -> unix ms at which its heartbeat expires
--          KEYS[3]  paceline:{speculator}:last_reading:{member}  string  the same status, with a longer TTL
--          KEYS[4]  paceline:{speculator}:seen                zset    member -> unix ms of its last beat
--          KEYS[5]  paceline:{speculator}:history:{member}    stream  fields boot and counters: those of a beat
-- claim:   KEYS[1]  paceline:{speculator}:boot:{member}       string  the process that has the name, with a TTL
--          KEYS[2]  paceline:{speculator}:seen
-- leave:   KEYS[1] to KEYS[5] of beat
--          KEYS[6]  paceline:{speculator}:boot:{member}       string  KEYS[1] of claim
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

local function whole(number) return string.format('%.0f', number) end

local function minute(row) return math.floor(tonumber(string.match(row[1], '^%d+')) / 60000) end

-- Of the entries that turn older than `fine_ms` now keep the last of each minute, and the last of a boot, without which
-- its final counts would be lost.
local function thin(history, now_ms, fine_ms)
  local rows = redis.call('XRANGE', history, whole(now_ms - fine_ms - 120000), whole(now_ms - fine_ms))
  for i = 1, #rows - 1 do
    local row, after = rows[i], rows[i + 1]
    if minute(row) == minute(after) and row[2][2] == after[2][2] then redis.call('XDEL', history, row[1]) end
  end
end

-- Append to a history unless its newest entry is of the same span of `every_ms`. A key of another type is replaced, as
-- SET replaces one. Where the clock was set back, the newest entry is of another span: it goes on at once.
local function remember(history, boot, counters, now_ms, every_ms, fine_ms, kept_ms, kept, ttl_ms)
  local kind = redis.call('TYPE', history)['ok']
  if kind ~= 'stream' and kind ~= 'none' then redis.call('DEL', history) end
  local newest = redis.call('XREVRANGE', history, '+', '-', 'COUNT', 1)[1]
  local ms = newest and tonumber(string.match(newest[1], '^%d+'))
  if ms and math.floor(ms / every_ms) == math.floor(now_ms / every_ms) then return end
  redis.call('XADD', history, 'MAXLEN', kept, '*', 'boot', boot, 'counters', counters)
  redis.call('XTRIM', history, 'MINID', whole(now_ms - kept_ms))
  thin(history, now_ms, fine_ms)
  redis.call('PEXPIRE', history, ttl_ms)
end

-- member, ttl in ms, status, ms for which the status is remembered, then of the history: counters ('' for none), their
-- boot, ms per entry, ms after which one per minute is kept, ms kept at all, entries kept at most
function verbs.beat()
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
  redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
  redis.call('ZADD', KEYS[2], whole(now_ms + ARGV[3]), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. whole(now_ms))
  redis.call('ZADD', KEYS[4], whole(now_ms), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. whole(now_ms - ARGV[5]))
  if ARGV[6] ~= '' then
    remember(KEYS[5], ARGV[7], ARGV[6], now_ms, tonumber(ARGV[8]), ARGV[9], ARGV[10], ARGV[11], ARGV[5])
  end
  return 1
end

-- member, boot, ttl in ms -> nothing once the name is held by `boot`, else when its holder beat last, as unix ms
function verbs.claim()
  local held = redis.pcall('GET', KEYS[1])
  if type(held) == 'string' and held ~= ARGV[3] then return redis.call('ZSCORE', KEYS[2], ARGV[2]) or '0' end
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  return false
end

-- member, boot -> 1 once nothing is left of the member, 0 where its last status is another boot's
function verbs.leave()
  local last = redis.pcall('GET', KEYS[3])
  if type(last) == 'string' and not string.find(last, '"boot":"' .. ARGV[3] .. '"', 1, true) then return 0 end
  redis.call('DEL', KEYS[1], KEYS[3], KEYS[5], KEYS[6])
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('ZREM', KEYS[4], ARGV[2])
  return 1
end

return verbs[ARGV[1]]()
