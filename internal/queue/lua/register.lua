-- register: adds a consumer group to a topic, or renews its options.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 groups     hash: group -> options
--       3 pending    zset: id -> due ms
--       4 scheduler  hash: next, holder, standby, until
--       5 idle       zset: group with an expiry -> ms at which it is removed
--       6 stats      hash of the group: counters and times
-- ARGV  1 layout     the layout version that the caller writes
--       2 version    a fresh random version for the changed set
--       3 group      the group's name
--       4 options    "<max deliveries> <retention ms> <max dead>", -1 for no limit; and " single"
--                    with SingleActive
--       5 expiry     ms without use after which the group is removed; "" for never. The call may
--                    put the removal off but not bring it forward, because another subscription may
--                    have asked for the later one.
--
-- Messages that waited for a first group are scheduled. A group that is being removed is not added,
-- because it would come back with a part of its messages. The caller finishes that removal first.
-- A group keeps its setting of SingleActive. A topic that has a group with it has another layout,
-- and its standby scheduler waits for a short time only.
-- Returns {layout, version, group, ...}, or {"removing"}, or {"mode"} if the group has the other
-- setting of SingleActive.
-- Twice: the second run finds the group registered and keeps the version.

local meta, groups, pending, scheduler, idle = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stats = KEYS[6]
local layout, fresh, group, options, expiry = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

--@use now post schedule

local found = redis.call('HMGET', meta, 'layout', 'groups')
local known = redis.call('HGET', groups, group)
local head = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
redis.call('ZCARD', idle)
redis.call('HLEN', stats)

local mark = layout .. ' single'
if found[1] and found[1] ~= layout and found[1] ~= mark then
  return {found[1], found[2] or ''}
end
if not known and redis.call('ZSCORE', idle, group) == '0' then
  return {'removing'}
end
local exclusive = string.find(options, ' single', 1, true) and true or false
if known and (string.find(known, ' single', 1, true) and true or false) ~= exclusive then
  return {'mode'}
end
if known then
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('HDEL', scheduler, '')
end
if not found[1] or not found[2] or not known then
  found = {(found[1] == mark or exclusive) and mark or layout, fresh}
  redis.call('HSET', meta, 'layout', found[1], 'groups', fresh)
end
if exclusive then
  redis.call('HSET', scheduler, 'grace', 50)
end
if known ~= options then
  redis.call('HSET', groups, group, options)
  if not known then
    redis.call('HSET', stats, 'seen', string.format('%d', now))
  else
    schedule(now) -- with lower limits, dead messages are forgotten earlier
  end
end
if expiry ~= '' then
  redis.call('ZADD', idle, 'GT', now + expiry, group)
  schedule(now + expiry)
else
  redis.call('ZREM', idle, group)
end
if head[2] then
  schedule(tonumber(head[2]))
end

local reply = {found[1], found[2]}
for _, name in ipairs(redis.call('HKEYS', groups)) do
  reply[#reply + 1] = name
end
return reply
