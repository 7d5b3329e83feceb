-- purge: forgets the dead messages that their group does not keep.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 groups      hash: group -> "<max deliveries> <retention ms> <max dead>"
--       3 messages    hash: id -> body
--       4 options     hash: id -> options, only of messages that have any
--       5 refs        hash: id -> number of groups that still need the body, if more than one
--       then for each group of the set:
--         dead        zset: id -> ms at which it died
--         deliveries  hash: id -> "count flag delayed_for reason"
--         stats       hash: counters and times of the group
-- ARGV  1 version     of the group set that KEYS were made from
--       2 budget      messages of all groups to forget at most (at most 1000)
--       then the name of each group
--
-- Messages past the retention go first. If there are still more than max dead, the oldest go, and
-- are counted in dead_purged.
-- Returns {"stale"} when the group set has changed, else {"ok", forgotten, left, excess}: left is 1
-- if more messages may have to go. excess is {group, number of messages that were too many, ...}.
-- Twice: the second run finds only messages that the first has not forgotten.

local meta, group_options = KEYS[1], KEYS[2]
local messages, options, refs = KEYS[3], KEYS[4], KEYS[5]
local version, budget = ARGV[1], tonumber(ARGV[2])
local groups = (#KEYS - 5) / 3

--@use now keeps

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
-- Read every key that is written later: one of a wrong type is found before the first write.
--@use forget
for g = 1, groups do
  redis.call('ZCARD', KEYS[3 + g * 3])
  redis.call('HLEN', KEYS[4 + g * 3])
  redis.call('HLEN', KEYS[5 + g * 3])
end

local total, excess = 0, {}
for g = 1, groups do
  if total == budget then break end
  local dead, deliveries, stats = KEYS[3 + g * 3], KEYS[4 + g * 3], KEYS[5 + g * 3]
  local retention, most = keeps(redis.call('HGET', group_options, ARGV[2 + g]))

  local function purge(ids)
    if #ids > 0 then
      redis.call('ZREM', dead, unpack(ids))
      redis.call('HDEL', deliveries, unpack(ids))
      forget(ids)
      total = total + #ids
    end
  end

  if retention >= 0 then
    purge(redis.call('ZRANGEBYSCORE', dead, '-inf', now - retention, 'LIMIT', 0, budget - total))
  end
  local many = most >= 0 and math.min(redis.call('ZCARD', dead) - most, budget - total) or 0
  if many > 0 then
    purge(redis.call('ZRANGE', dead, 0, many - 1))
    redis.call('HINCRBY', stats, 'dead_purged', many)
    excess[#excess + 1] = ARGV[2 + g]
    excess[#excess + 1] = many
  end
end
return {'ok', total, total == budget and 1 or 0, excess}
