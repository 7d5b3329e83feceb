-- erase: forgets a topic and all that it holds, in one step or in several.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--       3 idle    zset: group that is removed when unused -> ms at which it is
--       then the keys to forget
-- ARGV  1 version  of the group set
--       2 step     "first", "some" or "last"
--       3 fresh    a random version for the changed set, of the first step
--       then names of groups: with "first" all, with "some" those whose keys are given
--
-- The keys are unlinked: the server frees their memory beside its work. The last step forgets the topic itself
-- too, and may be the only one. The first takes all groups out of the set, so that nothing more comes to them,
-- and notes them in idle as being removed, so that a scheduler goes on if the caller does not.
-- Returns "ok", or "stale" when the group set has changed.
-- Twice: the second run finds unlinked what the first unlinked; after the first step another version, and after
-- the last no topic, so that it says "stale", and the caller begins again with what is left.

local meta, groups, idle = KEYS[1], KEYS[2], KEYS[3]
local version, step, fresh = ARGV[1], ARGV[2], ARGV[3]

--@use each

if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
if step ~= 'last' then
  redis.call('ZCARD', idle) -- one of a wrong type is found before anything is written
end

for i = 4, #KEYS, 1000 do
  redis.call('UNLINK', unpack(KEYS, i, math.min(i + 999, #KEYS)))
end
if step == 'last' then
  redis.call('UNLINK', idle, groups, meta)
elseif step == 'some' then
  each('ZREM', idle, ARGV, 4, #ARGV)
else
  redis.call('UNLINK', groups)
  local ends = {}
  for i = 4, #ARGV do
    ends[#ends + 1] = '0'
    ends[#ends + 1] = ARGV[i]
  end
  each('ZADD', idle, ends, 1, #ends)
  redis.call('HSET', meta, 'groups', fresh)
end
return 'ok'
