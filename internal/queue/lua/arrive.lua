-- arrive: gives copies that adopt held back their due times, once their originals are gone, and
-- ends the step of the move.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   options    hash: id -> options, only of messages that have any
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until
--   operation  string: the token of a move that has the topic, expiring
-- KEYS of each group
--   retry  zset: id -> due ms
-- ARGV
--   version  text: of the group set that KEYS were made from
--   token    text: with which adopt took the topic
--   latest   number: ms until which adopt held copies back
-- ARGV of each message
--   id    text: 100 at most
--   due   text: ms at which it is due, if it waits; else ""
--   free  text: ms at which its delay id is free, if it has that; else ""
--   held  number: places that it has
-- ARGV of each place
--   at     number: of its group
--   score  text: ms at which the retry is due
--
-- A copy that is due at another time by now, or is gone on, stays as it is. A due time in the past
-- stays so, because the lateness of the message counts from it.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok  text: "ok"
-- Twice: the second run finds no copy that is held back.

--@use now post grace schedule

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', options)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
for g = 1, group_count do
  --@each group g retry
  redis.call('ZCARD', retry)
end

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('ZREM', pending, '')
if redis.call('GET', operation) == token then
  redis.call('DEL', operation)
end
local soonest

-- Gives a copy its due time.
local function release(key, id, due)
  local is = tonumber(redis.call('ZSCORE', key, id) or nil)
  if is ~= latest then return false end
  redis.call('ZADD', key, due, id)
  soonest = math.min(soonest or tonumber(due), tonumber(due))
  return true
end

local last = 0 -- place
for i = 1, message_count do
  --@each message i id due free held
  local first = last + 1
  last = last + held
  if due ~= '' and release(pending, id, due) and free ~= '' then
    local name = string.match(redis.call('HGET', options, id) or '', 'delay_id:(%S+)')
    if name and redis.call('HGET', names, name) == id then
      redis.call('ZADD', taken, free, name)
    end
  end
  for p = first, last do
    --@each place p at score
    --@each group at retry
    release(retry, id, score)
  end
end
if group_count > 0 and soonest then
  schedule(math.max(soonest, now))
end
return {'ok'}
