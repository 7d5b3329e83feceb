-- erase: forgets a topic and all that it holds.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--       then every other key of the topic and of each group of the set
-- ARGV  1 version  of the group set that KEYS were made from
--       2 dry      "1": only count
--
-- The keys are unlinked: the server frees their memory beside its work.
-- Returns "stale" when the group set has changed, else how many of the keys there were, as text.
-- Twice: the second run finds no topic, and says "stale".

local meta = KEYS[1]
local version, dry = ARGV[1], ARGV[2] == '1'

if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
local found = 0
for _, key in ipairs(KEYS) do
  found = found + redis.call('EXISTS', key)
end
if not dry then
  for i = 1, #KEYS, 1000 do
    redis.call('UNLINK', unpack(KEYS, i, math.min(i + 999, #KEYS)))
  end
end
return string.format('%d', found)
