-- passing: reads the messages that became due of late, or become due soon, wherever they are.
--
-- KEYS  1 meta      hash: layout, groups (the version of the group set)
--       2 messages  hash: id -> body
--       3 options   hash: id -> options, only of messages that have any
--       4 pending   zset: id -> due ms
--       5 counters  hash: counters of the topic
--       then for each group of the set:
--         ready     list of "id:due"
--         unack     zset: id -> lease deadline ms
--         leases    hash: id -> "subscription:number:begin ms:due ms"
--         retry     zset: id -> due ms
-- ARGV  1 version   of the group set that KEYS were made from
--       2 since     ms of the first due time that counts; "" for now
--       3 ahead     ms from now until the last one
--       4 limit     entries at most that are read of each key
--       5 bytes     of bodies at most, but for the first one
--       then an entry "id:due" for each message whose body the caller has
--
-- Of ready it reads the entries that came last, and of unack those whose leases end last.
-- Returns {"stale"} when the group set has changed, else {now, number of messages that were ever
-- published, of those that were replaced, of those in pending, and then for each message: "id:due",
-- body, options}. A message that is in several groups with one due time comes once. The body is
-- false if the caller has it, or if it is missing. Messages whose bodies find no room are left out.
-- Twice: it only reads.

local meta, messages, options, pending, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local version, since, ahead, limit, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local groups = (#KEYS - 5) / 4

--@use now id_length

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local first, last = since or now, now + ahead
local from, upto = string.format('%d', first), string.format('%d', last)
local has = {}
for i = 6, #ARGV do
  has[ARGV[i]] = true
end

local found, there = {}, {}
local function take(id, due)
  local at = tonumber(due)
  local entry = id .. ':' .. due
  if at and at >= first and at <= last and id ~= nobody and not there[entry] then
    there[entry] = true
    found[#found + 1] = {entry, id}
  end
end
local function take_zset(key)
  local members = redis.call('ZRANGEBYSCORE', key, from, upto, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #members, 2 do
    take(members[i], members[i + 1])
  end
end

take_zset(pending)
for g = 0, groups - 1 do
  local ready, unack, leases, retry = KEYS[6 + 4 * g], KEYS[7 + 4 * g], KEYS[8 + 4 * g], KEYS[9 + 4 * g]
  for _, entry in ipairs(redis.call('LRANGE', ready, -limit, -1)) do
    take(string.sub(entry, 1, id_length), string.sub(entry, id_length + 2))
  end
  local held = redis.call('ZREVRANGEBYSCORE', unack, '+inf', '-inf', 'LIMIT', 0, limit)
  if #held > 0 then
    for i, token in ipairs(redis.call('HMGET', leases, unpack(held))) do
      take(held[i], token and string.match(token, '^[^:]*:[^:]*:%d+:(%d+)$') or '')
    end
  end
  take_zset(retry)
end

local reply, size, full = {string.format('%d', now)}, 0, false
for _, name in ipairs({'published', 'replaced'}) do
  reply[#reply + 1] = redis.call('HGET', counters, name) or '0'
end
reply[#reply + 1] = redis.call('ZCARD', pending)
for _, one in ipairs(found) do
  local entry, id = one[1], one[2]
  local body, own = false, ''
  if not has[entry] and not full then
    body = redis.call('HGET', messages, id)
    own = redis.call('HGET', options, id) or ''
    full = body and size > 0 and size + #body > bytes
    size = size + (body and #body or 0)
  end
  if has[entry] or not full then
    reply[#reply + 1] = entry
    reply[#reply + 1] = body
    reply[#reply + 1] = own
  end
end
return reply
