-- purge: forgets the dead messages that their group does not keep.
--
-- KEYS
--   meta      hash: layout, groups (the version of the group set)
--   groups    hash: group -> options
--   messages  hash: id -> body
--   options   hash: id -> options, only of messages that have any
--   refs      hash: id -> number of groups that still need the body, if more than one
-- KEYS of each group
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   stats       hash: counters and times of the group
--   history     stream: a line of each message that ended
-- ARGV
--   version   text: of the group set that KEYS were made from
--   budget    number: messages of all groups to forget at most (at most 1000)
--   recorded  flag: the topic may have groups with a history
-- ARGV of each group
--   name  text:
--
-- Messages past the retention go first. If there are still more than max dead, the oldest go, and
-- are counted in dead_purged.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok         text: "ok"
--   forgotten  number: messages
--   left       number: 1 if more messages may have to go
--   excess     list: {group, number of messages that were too many, ...}
-- Twice: the second run finds only messages that the first has not forgotten.

--@use now group_options origin history

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local record = recorded and histories()
-- Read every key that is written later: one of a wrong type is found before the first write.
--@use forget
for g = 1, group_count do
  --@each group g dead deliveries stats
  redis.call('ZCARD', dead)
  redis.call('HLEN', deliveries)
  redis.call('HLEN', stats)
  if record then
    --@each group g history
    record.expect(history)
  end
end

local total, excess = 0, {}
local kept_lines = {} -- by the streams that get them
for g = 1, group_count do
  if total == budget then break end
  --@each group g dead deliveries stats history name
  local o = read_options(redis.call('HGET', groups, name) or '')

  local function purge(ids)
    if #ids > 0 then
      local lines = record and o.history and record.lines_of(ids, redis.call('HMGET', deliveries, unpack(ids)))
      redis.call('ZREM', dead, unpack(ids))
      redis.call('HDEL', deliveries, unpack(ids))
      forget(ids)
      total = total + #ids
      if lines then
        kept_lines[#kept_lines + 1] = {history, o.history, lines, stats}
      end
    end
  end

  if o.retention >= 0 then
    purge(redis.call('ZRANGEBYSCORE', dead, '-inf', now - o.retention, 'LIMIT', 0, budget - total))
  end
  local many = o.max_dead >= 0 and math.min(redis.call('ZCARD', dead) - o.max_dead, budget - total) or 0
  if many > 0 then
    purge(redis.call('ZRANGE', dead, 0, many - 1))
    redis.call('HINCRBY', stats, 'dead_purged', many)
    excess[#excess + 1] = name
    excess[#excess + 1] = many
  end
end
if record then
  record.keep_all('purged', kept_lines)
end
return {'ok', total, total == budget and 1 or 0, excess}
