-- erase: forgets a topic and all that it holds, in one step or in several.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--       3 idle    zset: group with an expiry -> ms at which it is removed
--       then the keys to forget
-- ARGV  1 version  of the group set
--       2 step     "first", "some" or "last"
--       3 fresh    a random version for the changed set, used by the first step
--       then names of groups: all with "first", those whose keys are given with "some"
--
-- The keys are unlinked, so the server frees their memory in the background. The first step takes
-- all groups out of the set, so that they get no more messages. It notes them in idle as being
-- removed, so that a scheduler goes on if the caller does not. The last step forgets the topic
-- itself too, and may be the only one.
-- Returns "ok", or "stale" when the group set has changed.
-- Twice: a step of "some" unlinks nothing more. A first or last step returns "stale", because the
-- version is another or the topic is gone. The caller then begins again with the keys that are
-- left.

local meta, groups, idle = KEYS[1], KEYS[2], KEYS[3]
local version, step, fresh = ARGV[1], ARGV[2], ARGV[3]

--@use each

if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
if step ~= 'last' then
  redis.call('ZCARD', idle) -- finds a key of a wrong type before the first write
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
