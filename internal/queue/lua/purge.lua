-- purge: forgets the dead messages that are past their group's retention.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 groups      hash: group -> "<max deliveries> <retention ms>"
--       3 messages    hash: id -> body
--       4 options     hash: id -> options, only of messages that have any
--       5 refs        hash: id -> number of groups that still need the body, if more than one
--       then for each group of the set:
--         dead        zset: id -> ms at which it died
--         deliveries  hash: id -> "count flag delayed_for reason"
-- ARGV  1 version     of the group set that KEYS were made from
--       2 budget      messages of all groups to forget at most (at most 1000)
--       then the name of each group
--
-- Returns {"stale"} when the group set has changed, else {"ok", forgotten, left}: left is 1 if more
-- messages may be past their retention.
-- Twice: the second run finds only messages that the first has not forgotten.

local meta, group_options = KEYS[1], KEYS[2]
local messages, options, refs = KEYS[3], KEYS[4], KEYS[5]
local version, budget = ARGV[1], tonumber(ARGV[2])
local groups = (#KEYS - 5) / 2

--@use now

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
-- Read every key that is written later: one of a wrong type is found before the first write.
--@use forget
for g = 1, groups do
  redis.call('ZCARD', KEYS[4 + g * 2])
  redis.call('HLEN', KEYS[5 + g * 2])
end

local total = 0
for g = 1, groups do
  if total == budget then break end
  local dead, deliveries = KEYS[4 + g * 2], KEYS[5 + g * 2]
  local retention = tonumber(string.match(
    redis.call('HGET', group_options, ARGV[2 + g]) or '', '^%S+ (%S+)$') or -1)
  if retention >= 0 then
    local ids = redis.call('ZRANGEBYSCORE', dead, '-inf', now - retention, 'LIMIT', 0, budget - total)
    if #ids > 0 then
      redis.call('ZREM', dead, unpack(ids))
      redis.call('HDEL', deliveries, unpack(ids))
      forget(ids)
      total = total + #ids
    end
  end
end
return {'ok', total, total == budget and 1 or 0}
