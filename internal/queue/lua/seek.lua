-- seek: finds messages that retry under a delay id, a thousand retries a call.
--
-- KEYS  1 meta     hash: layout, groups (the version of the group set)
--       2 options  hash: id -> options, only of messages that have any
--       then for each group of the set:
--         retry    zset: id -> due ms
-- ARGV  1 version  of the group set that KEYS were made from
--       2 name     the delay id as it is stored
--       3 group    number of the group to go on with; 1 begins
--       4 score    of the last retry of that group that was looked at; "" begins the group
--       5 id       of that retry
--
-- A message that is due has no entry in names any more, but its options keep its delay id.
-- A call goes on behind a score and an id, in order of time. So a message that is nacked again
-- meanwhile is found too, because its next retry is later.
-- Returns {"stale"} when the group set has changed, else {group, score, id, then the ids that were
-- found}. The first three say where to go on. The group is 0 at the end.
-- Twice: it only reads.

local meta, options = KEYS[1], KEYS[2]
local version, name, group, score, id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local groups = #KEYS - 2
local left = 1000 -- retries that the call looks at; a group counts as ten at least

--@use precedes after

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local found = {}
while left > 0 and group <= groups do
  local retry = KEYS[2 + group]
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
return {group <= groups and group or 0, score, id, unpack(found)}
