-- nudge: has the topic's scheduler look, so that it finds the next event anew.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   scheduler  hash: next, holder, standby, until
-- ARGV
--   event  number: ms at which the scheduler looks at the latest; "" for now
--
-- Returns the event in ms, as text, or "" if there is no such topic.
-- Twice: the scheduler looks twice.

--@use now post grace schedule

if redis.call('HEXISTS', meta, 'groups') == 0 then
  return ''
end
-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', scheduler, '')
schedule(event or now)
return string.format('%d', event or now)
