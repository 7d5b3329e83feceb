-- page: reads some messages of one state, from a place on.
--
-- KEYS
--   state     key: zset of pending, unack, retry or dead: id -> score; or a list, ready
--   messages  hash: id -> body
--   options   hash: id -> options, only of messages that have any
--   records   key: hash of the group: id -> "count flag delayed_for reason"; for pending, which
--             has none, options again
--   leases    hash: id -> the lease's token; only for unack
--   names     hash: delay id -> id; only with frees
--   taken     zset: delay id -> ms at which it is free; only with frees
-- ARGV
--   kind    text: "zset" or "list"
--   score   text: of the last message of the page before, as it was returned; "" for the first
--           page. For a list, the number of entries to skip.
--   id      text: of that message
--   limit   number: messages at most (at most 1000)
--   leased  flag: the state is unack
--   bytes   number: of bodies at most, but for the first message; "" for no bodies
--   frees   flag: say when delay ids are free
--
-- A page of a zset begins behind the score and the id, whether that message still exists or not. So
-- pages stay right while messages come and go. Pages of a list begin at an index, so they may not.
-- Missing values are "".
-- Returns
-- REPLY
--   more  number: 1 if there may be others
-- REPLY of each message
--   id       text:
--   score    text: or the rest of an entry of ready
--   body     text or none: none if it is missing or was not asked for
--   options  text:
--   record   text:
--   token    text:
--   free     text: with frees, ms at which its delay id is free, if it has that; else ""
-- Twice: it only reads.

--@use id_length precedes after

local ids, scores = {}, {}
if kind == 'list' then
  local from = tonumber(score) or 0
  for i, entry in ipairs(redis.call('LRANGE', state, from, from + limit - 1)) do
    ids[i], scores[i] = string.sub(entry, 1, id_length), string.sub(entry, id_length + 2)
  end
else
  local from = score == '' and 0 or after(state, score, id)
  local found = redis.call('ZRANGE', state, from, from + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
  end
end
local reply, size = {#ids == limit and 1 or 0}, 0
local from = 1
while from <= #ids do
  -- Read one body, then as many as fit if they are as large as those so far. A body that does not
  -- fit is read in vain, so eight at most.
  local some, n = 32, from - 1
  if bytes then
    some = n == 0 and 1 or math.floor((bytes - size) / (math.max(size, 1) / n))
    some = math.max(1, math.min(some, 8))
  end
  local upto = math.min(from + some - 1, #ids)
  local bodies = bytes and redis.call('HMGET', messages, unpack(ids, from, upto)) or {}
  local own = redis.call('HMGET', options, unpack(ids, from, upto))
  local found = redis.call('HMGET', records, unpack(ids, from, upto))
  local tokens = leased and redis.call('HMGET', leases, unpack(ids, from, upto)) or {}
  for i = 1, upto - from + 1 do
    local body = bodies[i] or false
    local length = body and #body or 0
    if bytes and size > 0 and size + length > bytes then
      reply[1] = 1
      return reply
    end
    size = size + length
    reply[#reply + 1] = ids[from + i - 1]
    reply[#reply + 1] = scores[from + i - 1]
    reply[#reply + 1] = body
    reply[#reply + 1] = own[i] or ''
    reply[#reply + 1] = found[i] or ''
    reply[#reply + 1] = tokens[i] or ''
    local name = frees and own[i] and string.match(own[i], 'delay_id:(%S+)')
    local has = name and redis.call('HGET', names, name) == ids[from + i - 1]
    reply[#reply + 1] = has and redis.call('ZSCORE', taken, name) or ''
  end
  from = upto + 1
end
return reply
