-- adopt: takes copies of messages of another topic, each under its own id.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until
--   counters   hash: counters of the topic
--   groups     hash: group -> options
--   operation  string: the token of a move that has the topic, expiring
--   kept       list: the ready list of the window, if the set has one
--   idle       zset: group with an expiry -> ms at which it is removed
-- KEYS of each group
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   unack       zset: id -> lease deadline ms
-- ARGV
--   version  text: of the group set that KEYS were made from
--   token    text: of this step of the move
--   lease    text: ms for which the topic is taken
--   hold     number: ms from now until which no copy is due
-- ARGV of each group
--   name  text:
-- ARGV of each message
--   id     text: 100 at most
--   body   text:
--   own    text: its options; "" for none
--   due    text: ms at which it is due, if it waits; else ""
--   free   text: ms at which its delay id is free, if it has that; else ""
--   held   number: places that it has
-- ARGV of each place
--   at      number: of its group
--   kind    text: "retry" or "dead"
--   score   text: ms at which it is due, or died
--   record  text: its record in the group; "" for none
--
-- The places are those of the first message, then those of the second, and so on. A message with a
-- due time has none. A copy of an earlier step that still waits, retries or is dead is made anew.
-- Of a message that waits, only a copy that waits is.
-- Returns {"stale"} when the group set has changed, {"busy"} if another move has the topic, else
-- REPLY
--   ok        text: "ok"
--   until     text: ms from which on copies are due
--   verdicts  text: a letter for each message: "c" there is a copy now, "g" there was one, which a
--             group has ready or in hand by now, "n" another message has the delay id, "w" it was
--             here before, and the window or a group that is being removed may still have it
-- Twice: the second run makes the same copies anew.

--@use now post grace schedule each put id_length in_window group_options keeps moving movable

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
if is_moving(token) then
  return {'busy'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
-- messages need not be read, because it is the first key that is written.
redis.call('HLEN', options)
redis.call('HLEN', refs)
redis.call('ZCARD', pending)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
redis.call('HLEN', counters)
redis.call('HLEN', groups)
for g = 1, group_count do
  --@each group g retry dead deliveries
  redis.call('ZCARD', retry)
  redis.call('ZCARD', dead)
  redis.call('HLEN', deliveries)
end

local ids = {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local has = in_window(kept, ids)
local removing = redis.call('ZCOUNT', idle, '-inf', 0) > 0

-- Tells whether a copy of an earlier step is as a move leaves it. waits tells whether its original
-- waits for its due time.
local function is_untouched(id, waits)
  if redis.call('ZSCORE', pending, id) or waits then
    return redis.call('ZSCORE', pending, id) and true or false
  end
  local places = 0
  for g = 1, group_count do
    --@each group g retry dead unack
    if redis.call('ZSCORE', unack, id) then
      return false
    end
    places = places + ((redis.call('ZSCORE', retry, id) or redis.call('ZSCORE', dead, id)) and 1 or 0)
  end
  return groups_of(id, has[id]) == places
end

local verdicts, bodies, settings, old, named = {}, {}, {}, {}, {}
local fresh = 0
for i = 1, message_count do
  --@each message i id body own due free
  local name = free ~= '' and string.match(own, 'delay_id:(%S+)')
  local owner = name and (named[name] or redis.call('HGET', names, name))
  local ends = name and tonumber(redis.call('ZSCORE', taken, name) or 0)
  local there = redis.call('HEXISTS', messages, id) == 1
  local untouched = there and is_untouched(id, due ~= '')
  if there and (has[id] > 0 or removing and not untouched) then
    verdicts[i] = 'w'
  elseif there and not untouched then
    verdicts[i] = 'g'
  elseif owner and owner ~= id and (named[name] or ends > now) then
    verdicts[i] = 'n'
  else
    verdicts[i] = 'c'
    if name then
      named[name] = id
    end
    bodies[#bodies + 1], bodies[#bodies + 2] = id, body
    if own ~= '' then
      settings[#settings + 1], settings[#settings + 2] = id, own
    end
    if there then
      old[#old + 1] = id
    else
      fresh = fresh + 1
    end
  end
end

local soonest, dies = nil, {}
local function comes(ms)
  soonest = math.min(soonest or ms, ms)
end

put(messages, bodies, 1, #bodies)
redis.call('DEL', operation)
redis.call('SET', operation, token, 'PX', lease)
put(options, settings, 1, #settings)
if #old > 0 then
  redis.call('ZREM', pending, unpack(old))
  redis.call('HDEL', refs, unpack(old))
  for g = 1, group_count do
    --@each group g retry dead deliveries
    redis.call('ZREM', retry, unpack(old))
    redis.call('ZREM', dead, unpack(old))
    redis.call('HDEL', deliveries, unpack(old))
  end
end
local held_until = now + hold
local last = 0 -- place
for i = 1, message_count do
  --@each message i id own due free held
  local first = last + 1
  last = last + held
  if verdicts[i] == 'c' then
    local holds = 0 -- ms until which the delay id has to be taken
    if due ~= '' then
      holds = math.max(tonumber(due), held_until)
      redis.call('ZADD', pending, string.format('%d', holds), id)
      comes(holds)
    end
    for p = first, last do
      --@each place p at kind score record
      --@each group at retry dead deliveries
      if kind == 'dead' then
        redis.call('ZADD', dead, score, id)
        dies[at] = true
      else
        local again = math.max(tonumber(score), held_until)
        redis.call('ZADD', retry, string.format('%d', again), id)
        comes(again)
      end
      if record ~= '' then
        redis.call('HSET', deliveries, id, record)
      end
    end
    if held > 1 then
      redis.call('HSET', refs, id, held)
    end
    if free ~= '' then
      local name, ends = string.match(own, 'delay_id:(%S+)'), math.max(tonumber(free), holds)
      redis.call('HSET', names, name, id)
      redis.call('ZADD', taken, string.format('%d', ends), name)
      comes(ends)
    end
  end
end
for at in pairs(dies) do
  --@each group at dead name
  local first = tonumber(redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')[2])
  local purges = purge_at(redis.call('HGET', groups, name), dead, first)
  if purges then
    comes(math.max(purges, now))
  end
end
if fresh > 0 then
  redis.call('HINCRBY', counters, 'published', fresh)
end
if group_count > 0 then
  schedule(soonest)
end
return {'ok', string.format('%d', held_until), table.concat(verdicts)}
