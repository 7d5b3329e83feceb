-- stand_down: gives up the place of the active subscription of a group, and wakes a standby for it.
--
-- KEYS
--   scheduler  hash: next, holder, standby, until
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   leases     hash: id -> "subscription:claim:since:due", the lease's token
--   waiters    zset: address of an idle subscription -> ms until which it is valid
--   standby    zset: address of a subscription that may become the owner -> ms until which it is
--              valid
-- ARGV
--   group         text:
--   subscription  text:
--
-- A subscription that still holds messages keeps the place until their leases run out: the next
-- owner may get nothing before.
-- Returns 1 if the place is free now, else 0.
-- Twice: the second run finds another owner, or none, and changes nothing.

--@use now post grace schedule wake active

local a = read_active(group)
redis.call('HLEN', scheduler)
redis.call('ZCARD', waiters)
redis.call('ZCARD', standby)
if not a or a.owner ~= subscription or redis.call('HLEN', leases) > 0 then
  return 0
end
redis.call('DEL', waiters)
a.owner, a.ends = '-', wake(standby, 1) > 0 and now + a.lease or 0
write_active(group, a)
if a.ends > 0 then
  schedule(a.ends)
end
return 1
