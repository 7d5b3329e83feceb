-- gather: reads messages that are to move to another topic, and takes the topic for the move.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   schedules  hash: recurring schedule -> record
--   operation  string: the token of a move that has the topic, expiring
--   kept       list: the ready list of the window, if the set has one
-- KEYS of each group
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   unack       zset: id -> lease deadline ms
-- ARGV
--   version  text: of the group set that KEYS were made from
--   token    text: of this step of the move; "" only reads
--   lease    text: ms for which the topic is taken
--   bytes    number: of bodies at most, but for the last
-- ARGV of each message
--   id  text: 100 at most
--
-- depart takes the messages out of the topic only if nobody else has taken it since. So of two
-- moves one takes a message out, and the other does not take its copy for one too many.
-- Returns {"stale"} when the group set has changed, {"busy"} if another move has the topic, else
-- REPLY
--   ok  text: "ok"
-- REPLY of each message
--   why     text: why it does not move: "gone", "busy" (a group has it ready or in hand, or is being
--           removed), "scheduled" (it is an occurrence of a recurring schedule that waits); or ""
--   body    text or none:
--   own     text: its options
--   due     text: ms at which it is due, if it waits; else ""
--   free    text: ms at which its delay id is free, if it has that; else ""
--   places  list: for each group in which it retries or is dead the number of the group, "retry" or
--           "dead", the score, and its record
-- The reply may have fewer messages than the call, because of their size.
-- Twice: the second run takes the topic once more, unless another move has it.

--@use now id_length in_window moving movable

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
if token ~= '' and is_moving(token) then
  return {'busy'}
end

local ids = {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local has = in_window(kept, ids)
local reply, size = {'ok'}, 0
for _, id in ipairs(ids) do
  if size >= bytes then break end
  local body, own = redis.call('HGET', messages, id), redis.call('HGET', options, id) or ''
  local due = redis.call('ZSCORE', pending, id)
  local name = string.match(own, 'delay_id:(%S+)')
  local free = name and redis.call('HGET', names, name) == id and redis.call('ZSCORE', taken, name)
  local why, places = '', {}
  if not body then
    why = 'gone'
  elseif due then
    local schedule_name = name and string.match(name, '^(.*)%%40%d+$')
    if schedule_name and string.find(redis.call('HGET', schedules, schedule_name) or '', ' ', 1, true) then
      why = 'scheduled'
    end
  else
    for g = 1, group_count do
      --@each group g retry dead deliveries unack
      local retries, died = redis.call('ZSCORE', retry, id), redis.call('ZSCORE', dead, id)
      if redis.call('ZSCORE', unack, id) then
        why = 'busy'
      elseif retries or died then
        places[#places + 1] = g
        places[#places + 1] = retries and 'retry' or 'dead'
        places[#places + 1] = retries or died
        places[#places + 1] = redis.call('HGET', deliveries, id) or ''
      end
    end
    if groups_of(id, has[id]) ~= #places / 4 then
      why = 'busy'
    end
  end
  if why ~= '' then
    body = false
  end
  size = size + (body and #body or 0)
  for _, part in ipairs({why, body, own, due or '', free and tonumber(free) > now and free or '', places}) do
    reply[#reply + 1] = part
  end
end

if token ~= '' then
  -- The first write is a deletion: after one, a script may write at maxmemory too.
  redis.call('DEL', operation)
  redis.call('SET', operation, token, 'PX', lease)
end
return reply
