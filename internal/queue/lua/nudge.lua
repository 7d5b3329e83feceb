-- nudge: has the topic's scheduler look, so that it finds the next event anew.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 scheduler  hash: next, holder, standby, until
-- ARGV  1 event      ms at which the scheduler looks at the latest; "" for now
--
-- Returns the event in ms, as text, or "" if there is no such topic.
-- Twice: the scheduler looks twice.

local meta, scheduler, event = KEYS[1], KEYS[2], tonumber(ARGV[1])

--@use now post schedule

if redis.call('HEXISTS', meta, 'groups') == 0 then
  return ''
end
-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', scheduler, '')
schedule(event or now)
return string.format('%d', event or now)
