-- nudge: has the topic's scheduler look, which finds out anew when the next event is.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 scheduler  hash: next, holder, standby, until
-- ARGV  1 event      ms at which it is to look at the latest, or "": now
--
-- Returns the event, in ms as text, or "" if there is no such topic.
-- Twice: the scheduler looks twice.

local meta, scheduler, event = KEYS[1], KEYS[2], tonumber(ARGV[1])

--@use now schedule

if redis.call('HEXISTS', meta, 'groups') == 0 then
  return ''
end
redis.call('HDEL', scheduler, '') -- a deletion, of nothing: at maxmemory it still works
schedule(event or now)
return string.format('%d', event or now)
