-- page: reads some messages of one state, from a place on.
--
-- KEYS  1 state       zset of pending, unack, retry or dead: id -> score; or a list, ready
--       2 messages    hash: id -> body
--       3 options     hash: id -> options, only of messages that have any
--       4 deliveries  hash of the group: id -> "count flag delayed_for reason"; for pending, which
--                     has none, options again
--       5 leases      hash: id -> the lease's token; only for unack
-- ARGV  1 kind        "zset" or "list"
--       2 score       of the last message of the page before, as it was returned; "" for the first
--                     page. For a list, the number of entries to skip.
--       3 id          of that message
--       4 limit       messages at most (at most 1000)
--       5 bytes       of bodies at most, but for the first message; "" for no bodies
--
-- A page of a zset begins behind the score and the id, whether that message still exists or not. So
-- pages stay right while messages come and go. Pages of a list begin at an index, so they may not.
-- Returns {more, then id, score, body, options, record, token for each message}. more is 1 if there
-- may be others. A body that is missing or was not asked for is false; other missing values are "".
-- Twice: it only reads.

local state, messages, options, deliveries, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local kind, score, id, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local bytes = tonumber(ARGV[5])

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
  local records = redis.call('HMGET', deliveries, unpack(ids, from, upto))
  local tokens = leases and redis.call('HMGET', leases, unpack(ids, from, upto)) or {}
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
    reply[#reply + 1] = records[i] or ''
    reply[#reply + 1] = tokens[i] or ''
  end
  from = upto + 1
end
return reply
