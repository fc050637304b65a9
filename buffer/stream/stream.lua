-- Everything that counts traces; each call is atomic on the server. Large payloads do not pass through here on their way
-- in, since every word of a script is copied into Lua and out again: they are set before, and here they are renamed.
-- Redis copies every reply that a script reads several times, so reading traces is left to plain commands.
--
-- KEYS[1]  paceline:{speculator}:traces        stream  id <ms>-<ordinal>, field trace, or bytes where that is apart; with one
--                                                      consumer group
-- KEYS[2]  paceline:{speculator}:counts        hash    delivered, dead_lettered, trimmed, bytes, acked:<outcome>,
--                                                      last (id of the newest entry), cut (last trimmed ordinal)
-- KEYS[3]  paceline:{speculator}:ledger        list    "<id> <payload bytes> <trace_id>" of every entry in traces,
--                                                      oldest first
-- KEYS[4]  paceline:{speculator}:dead_letters  stream  fields reason, raw
-- KEYS[5]  paceline:{speculator}:trace_ids     hash    trace_id -> id, for every entry in traces
-- KEYS[6]  paceline:{speculator}:buried        set     ids of the entries in traces that are dead letters
-- KEYS[7]  paceline:{speculator}:bounds        hash    max_bytes (of payload), max_age_ms: those of the last append;
--                                                      longest_age_ms of all appends
-- KEYS[8]  paceline:{speculator}:payload:      string  this prefix followed by an entry's id: its payload, if it is large
-- ARGV[1]  verb, one of the functions of `verbs`
-- ARGV[2]  consumer group
-- ARGV[3]  now, unix milliseconds; empty: the server's clock
-- ARGV[4]  the caller's max_bytes: stored by append, otherwise used only while no bounds are stored
-- ARGV[5]  the caller's max_age_ms, likewise
-- ARGV[6]  maximum of dead letters kept
-- ARGV[7+] arguments of the verb
--
-- The ordinal of an entry is its position since the stream was made (1, 2, 3, ...), so that unread entries can be
-- counted by subtraction. It holds: delivered == pending + dead_lettered + sum(acked) + trimmed.

local traces, counts, ledger, dead_letters, trace_ids, buried, bounds, payload =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, dead_kept = ARGV[2], ARGV[6]
local FIRST = 7
-- A payload that is apart leaves with its entry. By itself it stays this much longer than its age allows, so that content
-- also leaves where nobody calls.
local GRACE_MS = 60000
local LONGEST_MS = 1e15 -- PEXPIRE takes not much more

local function now_ms()
  if ARGV[3] ~= '' then return tonumber(ARGV[3]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function count(name) return tonumber(redis.call('HGET', counts, name) or 0) end

local function whole(number) return string.format('%.0f', number) end

-- Milliseconds and ordinal of an entry id.
local function split(id)
  local ms, ordinal = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(ordinal)
end

-- Ids of all entries in the ledger, oldest first.
local function each_id()
  local rows, at = redis.call('LRANGE', ledger, 0, -1), 0
  return function()
    at = at + 1
    return rows[at] and string.match(rows[at], '^%S+')
  end
end

-- Id of the last entry that a consumer was given ('0-0': none yet) and number of pending entries; nil without a group.
local function group_state()
  local groups = redis.pcall('XINFO', 'GROUPS', traces)
  if groups.err then return nil end
  for _, row in ipairs(groups) do
    local info = {}
    for i = 1, #row, 2 do info[row[i]] = row[i + 1] end
    if info['name'] == group then return info['last-delivered-id'], info['pending'] end
  end
end

-- Make the group when it is missing (first use, FLUSHALL, a restart without data, an operator's DEL). A new group
-- reads from the beginning of the stream, so everything in it is delivered again and the counts start from that.
local function ensure_group()
  if group_state() then return end
  local here = redis.call('XLEN', traces)
  if here == 0 and redis.call('LLEN', ledger) > 0 then -- Before any other write, as in append.
    for id in each_id() do redis.call('UNLINK', payload .. id) end
    redis.call('DEL', ledger, trace_ids)
    redis.call('HDEL', bounds, 'longest_age_ms')
  end
  redis.call('XGROUP', 'CREATE', traces, group, '0', 'MKSTREAM')
  local bytes, cut, last = count('bytes'), count('cut'), redis.call('HGET', counts, 'last')
  redis.call('DEL', counts, buried)
  if here > 0 and last then
    redis.call('HSET', counts, 'delivered', here, 'bytes', whole(bytes), 'last', last, 'cut', whole(cut))
  else
    redis.call('DEL', ledger, trace_ids)
  end
end

-- The bounds belong to the stream and are its writers': a learner with other settings must not trim what the servers
-- mean to keep. They are stored because readers must apply them too: traces hold user content, and have to leave by
-- age when nobody appends.
local function stream_bounds()
  local stored = redis.call('HMGET', bounds, 'max_bytes', 'max_age_ms')
  return tonumber(stored[1] or ARGV[4]), tonumber(stored[2] or ARGV[5])
end

-- Remove the oldest entries until the rest keeps to the bounds. Needs a group.
local function trim(now, max_bytes, max_age_ms)
  local _, read = split(group_state())
  local bytes, lost, cut_id, cut = count('bytes'), 0, nil, nil
  while true do
    local id, size, trace_id = string.match(redis.call('LINDEX', ledger, 0) or '', '^(%S+) (%d+) (.*)$')
    if not id then break end
    local ms, ordinal = split(id)
    if bytes <= max_bytes and ms >= now - max_age_ms then break end
    redis.call('LPOP', ledger)
    redis.call('UNLINK', payload .. id)
    redis.call('HDEL', trace_ids, trace_id)
    redis.call('SREM', buried, id)
    if redis.call('XACK', traces, group, id) == 1 or ordinal > read then lost = lost + 1 end
    bytes, cut_id, cut = bytes - tonumber(size), whole(ms) .. '-' .. whole(ordinal + 1), ordinal
  end
  if not cut then return end
  redis.call('XTRIM', traces, 'MINID', cut_id)
  redis.call('HINCRBY', counts, 'trimmed', lost)
  redis.call('HSET', counts, 'bytes', whole(bytes), 'cut', whole(cut))
end

local function expire_payload(id, age_ms)
  redis.call('PEXPIRE', payload .. id, whole(math.min(age_ms, LONGEST_MS) + GRACE_MS))
end

-- Make the caller's bounds the stream's -> the longest age that any caller asked for, by which payloads expire: callers
-- whose ages differ take turns, and no payload may be gone before its entry.
local function set_bounds(max_bytes, max_age_ms)
  local before_ms = tonumber(redis.call('HGET', bounds, 'longest_age_ms') or 0)
  local longest_ms = math.max(before_ms, max_age_ms)
  redis.call('HSET', bounds, 'max_bytes', whole(max_bytes), 'max_age_ms', whole(max_age_ms))
  if longest_ms > before_ms then
    redis.call('HSET', bounds, 'longest_age_ms', whole(longest_ms))
    for id in each_id() do expire_payload(id, longest_ms) end
  end
  return longest_ms
end

-- One call for many words, which costs as much as one for a few; an even number of them, below the size of Lua's stack.
local function call_with_all(command, key, words)
  for first = 1, #words, 1000 do
    redis.call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

-- trace_id -> id of the entry that has it, for those of `names` that are in the stream; '' never is.
local function entered(names)
  local found = {}
  for first = 1, #names, 1000 do
    local last = math.min(first + 999, #names)
    local ids = redis.call('HMGET', trace_ids, unpack(names, first, last))
    for i = first, last do found[names[i]] = ids[i - first + 1] or nil end
  end
  return found
end

local verbs = {}

-- name, ('<bytes> <trace_id or nothing>', payload or nothing)... -> ids. A payload that is not given was set just before,
-- to expire soon, as name .. 1 if it is of the first trace, as name .. 2 if of the second one, and so on. Ids never
-- decrease, even when the clock does. A trace_id that is already in the stream is not stored again. An error at the
-- first payload that is not there: what comes before it is stored, nothing else is.
function verbs.append()
  ensure_group()
  local now, bytes, ids, new, missing = now_ms(), 0, {}, nil, nil
  local max_bytes, max_age_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
  -- An entry that is about to leave must not keep its own trace from being stored again. Trimming comes before any
  -- other write: a Redis without memory lets a script begin with a removal, and lets it go on after that.
  trim(now, max_bytes, max_age_ms)
  local longest_ms = set_bounds(max_bytes, max_age_ms)
  local last_ms, ordinal = split(redis.call('HGET', counts, 'last') or '0-0')
  local ms = math.max(now, last_ms)
  local rows, named, sizes, names = {}, {}, {}, {}
  for i = FIRST + 1, #ARGV, 2 do
    sizes[#sizes + 1], names[#names + 1] = string.match(ARGV[i], '^(%d+) (.*)$')
  end
  local stored = entered(names)
  for i, trace_id in ipairs(names) do
    local id, size, inside = stored[trace_id], sizes[i], ARGV[FIRST + 2 * i]
    local arrived = #inside < tonumber(size) and payload .. ARGV[FIRST] .. i
    if id then
      if arrived then redis.call('UNLINK', arrived) end
    else
      id = whole(ms) .. '-' .. whole(ordinal + 1)
      missing = arrived and redis.pcall('RENAME', arrived, payload .. id).err
      if missing then break end
      if arrived then
        redis.call('XADD', traces, id, 'bytes', size)
        expire_payload(id, ms - now + longest_ms)
      else
        redis.call('XADD', traces, id, 'trace', inside)
      end
      ordinal = ordinal + 1
      rows[#rows + 1] = id .. ' ' .. size .. ' ' .. trace_id
      if trace_id ~= '' then
        stored[trace_id] = id
        named[#named + 1] = trace_id
        named[#named + 1] = id
      end
      bytes, new = bytes + tonumber(size), id
    end
    ids[#ids + 1] = id
  end
  if new then
    redis.call('HSET', counts, 'last', new)
    redis.call('HINCRBY', counts, 'delivered', #rows)
  end
  call_with_all('RPUSH', ledger, rows)
  call_with_all('HSET', trace_ids, named)
  redis.call('HINCRBY', counts, 'bytes', whole(bytes))
  trim(now, max_bytes, max_age_ms)
  if missing then return redis.error_reply('ERR payload ' .. #ids + 1 .. ' is not there: ' .. missing) end
  return ids
end

-- Before reading: make sure that there is a group, and nothing beyond the bounds.
function verbs.prepare()
  ensure_group()
  trim(now_ms(), stream_bounds())
end

-- outcome, id... -> how many were pending
function verbs.ack()
  local ended = 0
  for i = FIRST + 1, #ARGV do
    if redis.pcall('XACK', traces, group, ARGV[i]) == 1 then ended = ended + 1 end
  end
  if ended > 0 then redis.call('HINCRBY', counts, 'acked:' .. ARGV[FIRST], ended) end
  return ended
end

-- max. deliveries, id... -> those of the pending ids that were delivered more often
function verbs.delivered_too_often()
  local found = {}
  for i = FIRST + 1, #ARGV do
    local row = redis.call('XPENDING', traces, group, ARGV[i], ARGV[i], 1)[1]
    if row and row[4] > tonumber(ARGV[FIRST]) then found[#found + 1] = ARGV[i] end
  end
  return found
end

-- id... -> how many were pending: each counts one delivery less; its consumer and its idle time stay.
function verbs.forgive()
  local pending = 0
  for i = FIRST, #ARGV do
    local row = redis.call('XPENDING', traces, group, ARGV[i], ARGV[i], 1)[1]
    if row then
      local idle_ms, deliveries = row[3], whole(math.max(row[4] - 1, 0))
      redis.call('XCLAIM', traces, group, row[2], 0, ARGV[i], 'IDLE', whole(idle_ms), 'RETRYCOUNT', deliveries, 'JUSTID')
      pending = pending + 1
    end
  end
  return pending
end

-- id, reason, raw: make one pending entry a dead letter. The copy is made first: when it is refused (memory, a key of
-- another type) the script ends there and the entry is still pending.
function verbs.bury()
  local id = ARGV[FIRST]
  if #redis.call('XPENDING', traces, group, id, id, 1) == 0 then return 0 end
  redis.call('XADD', dead_letters, 'MAXLEN', dead_kept, '*', 'reason', ARGV[FIRST + 1], 'raw', ARGV[FIRST + 2])
  redis.call('SADD', buried, id)
  redis.call('XACK', traces, group, id)
  return redis.call('HINCRBY', counts, 'dead_lettered', 1)
end

-- Milliseconds since the oldest entry that is not acked was appended; false without one. Entries are read in their
-- order, so one that was read and not acked is older than every unread one. Needs a group.
local function oldest_wait()
  local read_id, pending = group_state()
  local id = pending > 0 and redis.call('XPENDING', traces, group)[2]
  if not id then
    local _, read = split(read_id)
    local _, newest = split(redis.call('HGET', counts, 'last') or '0-0')
    local unread = newest - math.max(read, count('cut'))
    id = unread > 0 and redis.call('LINDEX', ledger, -unread)
  end
  if not id then return false end
  local ms = split(id)
  return math.max(now_ms() - ms, 0)
end

-- Milliseconds since the oldest entry was appended; false without one.
local function oldest_kept()
  local id = string.match(redis.call('LINDEX', ledger, 0) or '', '^%S+')
  local ms = id and split(id)
  return ms and math.max(now_ms() - ms, 0)
end

-- -> pending, entries in the stream, ms that the oldest pending one and the oldest one are here, max_bytes, then names
-- and values of the counts. Trims first: a learner without enough traces to learn from asks for counts and claims
-- nothing, and traces must leave by age then as well.
function verbs.counts()
  local max_bytes, max_age_ms = stream_bounds()
  if not group_state() then return { 0, 0, false, false, max_bytes } end
  trim(now_ms(), max_bytes, max_age_ms)
  local read_id, pending = group_state()
  local _, read = split(read_id)
  local _, newest = split(redis.call('HGET', counts, 'last') or '0-0')
  local unread = newest - math.max(read, count('cut'))
  local here, kept = redis.call('XLEN', traces), oldest_kept() or false
  local all = pending + math.max(unread, 0)
  return { all, here, oldest_wait(), kept, max_bytes, unpack(redis.call('HGETALL', counts)) }
end

-- -> milliseconds since the oldest entry that is not acked was appended; nil without one
function verbs.oldest_wait()
  return group_state() and oldest_wait()
end

-- -> id of the last entry read, then ids of those read that were not acked: pending ones and dead letters
function verbs.unacked()
  local read_id, pending = group_state()
  local ids = { read_id or '0-0' }
  for _, id in ipairs(redis.call('SMEMBERS', buried)) do ids[#ids + 1] = id end
  if not read_id or pending == 0 then return ids end
  for _, row in ipairs(redis.call('XPENDING', traces, group, '-', '+', pending)) do ids[#ids + 1] = row[1] end
  return ids
end

return verbs[ARGV[1]]()
