-- depart: takes messages out of a topic, because another topic has them; or copies, because it does
-- not get them.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   operation  string: the token of the move that has the topic, or the result of an earlier run of
--              this call; expiring
--   kept       list: the ready list of the window, if the set has one
--   groups     hash: group -> options
--   counters   hash: counters of the topic
--   ended      stream: a line of each message that ended before a group had it
-- KEYS of each group
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   history     stream: a line of each message that ended
-- ARGV
--   version   text: of the group set that KEYS were made from
--   token     text: with which gather or adopt took the topic
--   memory    text: ms for which the result is remembered
--   recorded  flag: histories tell that the messages moved
-- ARGV of each group
--   name  text:
-- ARGV of each message
--   id    text: 100 at most
--   due   text: ms at which it is due, if it waits; else ""
--   held  number: places that it has
-- ARGV of each place
--   at     number: of its group
--   kind   text: "retry" or "dead"
--   score  text: ms at which it is due, or died
--
-- A message goes only if it is exactly there: it waits until that time, or these are the places of
-- all groups that need it. Its delay id is free then. A message in the window goes out of it, too.
-- Returns {"stale"} when the group set has changed, {"lost"} if the token has not the topic any
-- more, else
-- REPLY
--   ok       text: "ok"
--   results  text: a letter for each message: "m" it went, "o" it is there otherwise, "g" it is gone
-- Twice: the second run returns the remembered result of the first.

--@use now id_length in_window group_options origin history whole movable

local before = redis.call('GET', operation) or ''
if string.sub(before, 1, #token + 1) == token .. ' ' then
  return {'ok', string.sub(before, #token + 2)}
end
if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
if before ~= token then
  return {'lost'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', messages)
redis.call('HLEN', options)
redis.call('HLEN', refs)
redis.call('ZCARD', pending)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
local record = recorded and histories()
local bounds = record and whole_bounds()
local keeps = {} -- bounds of the history of each group
if record then
  redis.call('HLEN', counters)
  record.expect(ended)
end
for g = 1, group_count do
  --@each group g retry dead deliveries history name
  redis.call('ZCARD', retry)
  redis.call('ZCARD', dead)
  redis.call('HLEN', deliveries)
  if record then
    record.expect(history)
    local o = read_options(redis.call('HGET', groups, name))
    keeps[g] = o and o.history
  end
end

local ids = {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local has = in_window(kept, ids)

local results, waiting, dues, gone, counted = {}, {}, {}, {}, {}
local leaves = {} -- of each group the ids that leave it
for g = 1, group_count do
  leaves[g] = {}
end
local last = 0 -- place
for i = 1, message_count do
  --@each message i id due held
  local first = last + 1
  last = last + held
  local is = tonumber(redis.call('ZSCORE', pending, id) or nil)
  local same = due ~= '' and is == tonumber(due) or due == '' and not is and groups_of(id, has[id]) == held
  for p = first, last do
    --@each place p at kind score
    --@each group at retry dead
    same = same and tonumber(redis.call('ZSCORE', kind == 'dead' and dead or retry, id) or nil) == tonumber(score)
  end
  if redis.call('HEXISTS', messages, id) == 0 then
    results[i] = 'g'
  elseif not same then
    results[i] = 'o'
  else
    results[i] = 'm'
    if due ~= '' then
      waiting[#waiting + 1], dues[#dues + 1] = id, due
    end
    for p = first, last do
      --@each place p at
      leaves[at][#leaves[at] + 1] = id
    end
    if due == '' and has[id] > 0 then
      counted[#counted + 1] = id
    else
      gone[#gone + 1] = id
    end
  end
end

local kept_lines = {} -- by the streams that get them
if bounds and #waiting > 0 then
  local lines = record.lines_of(waiting)
  for i, l in ipairs(lines) do
    l.due = dues[i]
  end
  kept_lines[1] = {ended, bounds, lines, counters}
end
for g = 1, group_count do
  --@each group g deliveries history
  if keeps[g] and #leaves[g] > 0 then
    local lines = record.lines_of(leaves[g], redis.call('HMGET', deliveries, unpack(leaves[g])))
    kept_lines[#kept_lines + 1] = {history, keeps[g], lines, counters}
  end
end

-- The first write deletes nothing, or messages. After a deletion, a script may write at maxmemory
-- too.
redis.call('ZREM', pending, '', unpack(waiting))
for i = 1, message_count do
  --@each message i id
  local own = results[i] == 'm' and redis.call('HGET', options, id)
  local name = own and string.match(own, 'delay_id:(%S+)')
  if name and redis.call('HGET', names, name) == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
end
for g = 1, group_count do
  --@each group g retry dead deliveries
  if #leaves[g] > 0 then
    redis.call('ZREM', retry, unpack(leaves[g]))
    redis.call('ZREM', dead, unpack(leaves[g]))
    redis.call('HDEL', deliveries, unpack(leaves[g]))
  end
end
for _, id in ipairs(counted) do
  redis.call('HSET', refs, id, has[id])
  redis.call('RPUSH', kept, nobody .. ':' .. id)
end
if #gone > 0 then
  redis.call('HDEL', refs, unpack(gone))
  redis.call('HDEL', messages, unpack(gone))
  redis.call('HDEL', options, unpack(gone))
end
results = table.concat(results)
redis.call('SET', operation, token .. ' ' .. results, 'PX', memory)
if record then
  record.keep_all('moved', kept_lines)
end
return {'ok', results}
