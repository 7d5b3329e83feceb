-- promote_stream: takes or keeps the scheduling lease, and moves due messages into the stream.
--
-- KEYS
--   meta        hash: layout, groups (the version of the group set), maxlen (entries that the
--               stream keeps)
--   groups      hash: group -> options
--   messages    hash: id -> body
--   options     hash: id -> options, only of messages that have any
--   pending     zset: id -> due ms
--   scheduler   hash: next (ms of the next event), holder, standby (addresses), until (ms)
--   names       hash: delay id -> id
--   taken       zset: delay id -> ms at which it is free
--   paused      hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   stream      stream: that the messages go into
--   retry       zset: id -> due ms, of dead messages that were requeued
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   stats       hash: counters and times of the group
--   resumes     zset: group, or "" for the topic -> ms at which its pause ends
-- CONSTANTS
--   bounds = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000}
--   longer = {300000, 900000, 3600000, 21600000, 86400000}
--            ms by which messages were late; a field of stats counts those up to each
-- ARGV
--   version   text: of the group set that KEYS were made from
--   me        text: address of the caller
--   patience  number: ms for which a standby stays one without a call
--   budget    number: messages to move at most
--   bytes     number: of bodies to move at most, but for the first message
--   group     text: that stands for the stream
--
-- The snippet role describes the lease. Messages go in order of due time and id. A message that is
-- too late is dropped, or dead if its options say so. A message whose body is no stream entry is
-- dead. If the stream refuses a message, that one and all behind it stay where they are. If it was
-- the first, the call fails with the server's error.
-- At maxmemory messages still move, because the stream gets what the other keys lose.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   role     text: see promote
--   wait     text: see promote
--   expired  number: 0
--   purge    number: see promote
--   unused   list: empty
--   resume   number: see promote
--   lost     number: messages that had no body and were forgotten
--   dropped  number: messages that were dropped, because it was too late for them
-- Twice: the second run finds only messages that the first has not moved.

--@use now grace heard role each precedes fields_of due_at event free_names latest
--@use group_options keeps

-- Tells whether a message with these options is too late.
local function too_late(own, due)
  local at = tonumber(string.match(own, 'expires_at:(%d+)') or nil)
  local lateness = tonumber(string.match(own, 'max_lateness:(%d+)') or nil)
  return (at and now >= at) or (lateness and now >= due + lateness)
end

-- Returns the field of stats that counts messages that were so late.
local function late_field(ms)
  for _, some in ipairs({bounds, longer}) do
    for _, bound in ipairs(some) do
      if ms <= bound then
        return string.format('late_%d', bound)
      end
    end
  end
  return 'late_more'
end

local topic = redis.call('HMGET', meta, 'groups', 'maxlen')
if topic[1] ~= version then
  return {'stale'}
end
local maxlen = tonumber(topic[2] or 0)

local role, wait = ask_role()
if role then
  return {role, wait, 0, 0, {}, 0, 0, 0}
end

-- Read every key that is used later: one of a wrong type is found before the first write.
local rests = redis.call('HLEN', paused) > 0
local first_resume = due_at(resumes, 0)
local resume = first_resume and first_resume <= now
local fresh = redis.call('ZRANGEBYSCORE', pending, '-inf', now, 'WITHSCORES', 'LIMIT', 0, budget)
local again = redis.call('ZRANGEBYSCORE', retry, '-inf', now, 'WITHSCORES', 'LIMIT', 0, budget)
if rests then
  fresh, again = {}, {}
end
local group_options = redis.call('HGET', groups, group)
local optional = redis.call('HLEN', options) > 0
local counted = redis.call('HGET', stats, 'latest_ms')
local first_free = redis.call('ZRANGE', taken, 0, 0, 'WITHSCORES')
redis.call('HLEN', names)
redis.call('HLEN', messages)
redis.call('HLEN', deliveries)
redis.call('ZCARD', dead)
redis.call('XLEN', stream)

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', scheduler, '')

-- Move the messages of both one by one, in order.
local f, r, moved, size, refused = 1, 1, 0, 0, nil
local gone, died, records = {}, {}, {}
local delivered, dropped, lost, latest = 0, 0, 0, 0
local counts = {} -- what is added to fields of stats
local function count_one(field)
  counts[field] = (counts[field] or 0) + 1
end
while moved < budget and (fresh[f] or again[r]) do
  local retried = not fresh[f]
  if fresh[f] and again[r] then
    local a, b = tonumber(again[r + 1]), tonumber(fresh[f + 1])
    retried = a < b or (a == b and precedes(again[r], fresh[f]))
  end
  local id, due = fresh[f], tonumber(fresh[f + 1] or nil)
  if retried then
    id, due = again[r], tonumber(again[r + 1])
  end
  local body = redis.call('HGET', messages, id)
  size = size + #(body or '')
  if moved > 0 and size > bytes then break end

  local own = optional and redis.call('HGET', options, id)
  local fields = body and fields_of(body)
  local reason
  if not body then
    lost = lost + 1
  elseif not retried and own and too_late(own, due) then
    if string.find(own, 'on_expiry:dead', 1, true) then
      reason = 'not delivered in time'
      count_one('dead_late')
    else
      dropped = dropped + 1
      count_one('dropped')
    end
  elseif not fields then
    count_one('dead_unmarshal')
    reason = 'unmarshal: the body is not in the form of a stream entry'
  else
    local added = redis.pcall('XADD', stream, '*', unpack(fields))
    if type(added) == 'table' then
      refused = added
      break
    end
    delivered = delivered + 1
    count_one(late_field(now - due))
    latest = math.max(latest, now - due)
  end
  if reason then
    died[#died + 1] = string.format('%d', now)
    died[#died + 1] = id
    records[#records + 1] = id
    records[#records + 1] = '0 - - ' .. reason
  else
    gone[#gone + 1] = id
  end
  moved = moved + 1
  if retried then
    r = r + 2
  else
    f = f + 2
  end
end
if refused and moved == 0 then
  return refused
end

each('HDEL', messages, gone, 1, #gone)
each('HDEL', options, gone, 1, #gone)
each('HDEL', deliveries, gone, 1, #gone)
each('ZADD', dead, died, 1, #died)
each('HSET', deliveries, records, 1, #records)
if delivered > 0 then
  redis.call('HSET', stats, 'latest_ms', latest_with(counted, latest), 'seen', string.format('%d', now))
  if maxlen > 0 then
    redis.call('XTRIM', stream, 'MAXLEN', '~', topic[2]) -- the text, because Lua would write 1e+17
  end
end
for field, many in pairs(counts) do
  redis.call('HINCRBY', stats, field, many)
end

first_free = free_names(first_free)

local from_pending, from_retry = (f - 1) / 2, (r - 1) / 2
if not rests then
  upcoming(due_at(pending, from_pending))
  upcoming(due_at(retry, from_retry))
end
upcoming(tonumber(first_free[2] or nil))
local purges = purge_at(group_options, dead, due_at(dead, 0))
upcoming(purges)
upcoming(first_resume)

keep_role(event, false, not (purges and purges <= now) and not resume)
-- Deletions by position are the last writes: see docs/design.md.
if from_pending > 0 then
  redis.call('ZREMRANGEBYRANK', pending, 0, from_pending - 1)
end
if from_retry > 0 then
  redis.call('ZREMRANGEBYRANK', retry, 0, from_retry - 1)
end
return {
  'holder', wait_until(event), 0, purges and purges <= now and 1 or 0, {}, resume and 1 or 0, lost, dropped,
}
