-- passing: reads the messages that became due of late, or become due soon, wherever they are.
--
-- KEYS
--   meta      hash: layout, groups (the version of the group set)
--   messages  hash: id -> body
--   options   hash: id -> options, only of messages that have any
--   pending   zset: id -> due ms
--   counters  hash: counters of the topic
-- KEYS of each group
--   ready   list: "id:due"
--   unack   zset: id -> lease deadline ms
--   leases  hash: id -> "subscription:number:begin ms:due ms"
--   retry   zset: id -> due ms
-- ARGV
--   version  text: of the group set that KEYS were made from
--   since    number: ms of the first due time that counts; "" for now
--   ahead    number: ms from now until the last one
--   limit    number: entries at most that are read of each key
--   bytes    number: of bodies at most, but for the first one
-- ARGV of each body
--   known  text: the entry "id:due" of a message whose body the caller has
--
-- Of ready it reads the entries that came last, and of unack those whose leases end last.
-- A message that is in several groups with one due time comes once. Messages whose bodies find no
-- room are left out.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   now        text: the server's time in ms
--   published  text: number of messages that were ever published
--   replaced   text: of those, the number that were replaced
--   waiting    number: of messages in pending that are not due
-- REPLY of each message
--   entry    text: "id:due"
--   body     text or none: none if the caller has it, or if it is missing
--   options  text:
-- Twice: it only reads.

--@use now id_length

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local first, last = since or now, now + ahead
local from, upto = string.format('%d', first), string.format('%d', last)
local has = {}
for i = 1, body_count do
  --@each body i known
  has[known] = true
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
for g = 1, group_count do
  --@each group g ready unack leases retry
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
reply[#reply + 1] = redis.call('ZCOUNT', pending, '(' .. string.format('%d', now), '+inf')
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
