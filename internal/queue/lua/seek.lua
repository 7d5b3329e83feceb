-- seek: finds messages that retry under a delay id, a thousand retries a call.
--
-- KEYS
--   meta     hash: layout, groups (the version of the group set)
--   options  hash: id -> options, only of messages that have any
-- KEYS of each group
--   retry  zset: id -> due ms
-- CONSTANTS
--   looks = 1000  retries that the call looks at; a group counts as ten at least
-- ARGV
--   version  text: of the group set that KEYS were made from
--   name     text: the delay id as it is stored
--   group    number: number of the group to go on with; 1 begins
--   score    text: of the last retry of that group that was looked at; "" begins the group
--   id       text: of that retry
--
-- A message that is due has no entry in names any more, but its options keep its delay id.
-- A call goes on behind a score and an id, in order of time. So a message that is nacked again
-- meanwhile is found too, because its next retry is later.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   group  number: to go on with; 0 at the end
--   score  text: where to go on
--   id     text: where to go on
-- REPLY of each message
--   found  text: its id
-- Twice: it only reads.

local left = looks

--@use precedes after

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local found = {}
while left > 0 and group <= group_count do
  --@each group group retry
  local from = score == '' and 0 or after(retry, score, id)
  local members = redis.call('ZRANGE', retry, from, from + left - 1, 'WITHSCORES')
  local ids = {}
  for i = 1, #members, 2 do
    ids[#ids + 1] = members[i]
  end
  if #ids > 0 then
    for i, own in ipairs(redis.call('HMGET', options, unpack(ids))) do
      if own and string.match(own, 'delay_id:(%S+)') == name then
        found[#found + 1] = ids[i]
      end
    end
  end
  if #ids < left then -- no more of this group
    group, score, id = group + 1, '', ''
  else
    score, id = members[#members], members[#members - 1]
  end
  left = left - math.max(#ids, 10)
end
return {group <= group_count and group or 0, score, id, unpack(found)}
