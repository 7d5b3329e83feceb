-- succeed: takes the place of an active subscription that failed, and wakes a standby for it.
--
-- KEYS
--   scheduler  hash: next, holder, standby, until
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
-- KEYS of each group
--   unack    zset: id -> lease deadline ms
--   waiters  zset: address of an idle subscription -> ms until which it is valid
--   standby  zset: address of a subscription that may become the owner -> ms until which it is
--            valid
-- ARGV of each group
--   name  text:
--
-- A subscription has failed if it did not claim within its lease after it was woken, or after its
-- last claim. While it holds messages, only their leases count. Then the place is free, and a
-- standby has to claim within a lease. If it does not, the next standby gets the place. Without a
-- standby, any subscription that claims becomes the owner, and no deadline runs.
-- Returns
-- REPLY of each failure
--   group  text:
--   owner  text: of the group, which failed
-- Twice: the second run finds no deadline that is over.

--@use now post grace schedule wake active

redis.call('HLEN', scheduler)
for g = 1, group_count do
  --@each group g unack waiters standby
  redis.call('ZCARD', unack)
  redis.call('ZCARD', waiters)
  redis.call('ZCARD', standby)
end
local failed = {}
for g = 1, group_count do
  --@each group g unack waiters standby name
  local a = read_active(name)
  if a and a.ends > 0 and a.ends <= now and redis.call('ZCARD', unack) == 0 then
    if a.owner ~= '-' then
      failed[#failed + 1] = name
      failed[#failed + 1] = a.owner
    end
    local told = wake(standby, 1)
    if told == 0 then
      wake(waiters, 1) -- it may be the owner itself that waits
    end
    redis.call('DEL', waiters)
    a.owner, a.ends = '-', told > 0 and now + a.lease or 0
    write_active(name, a)
    if a.ends > 0 then
      schedule(a.ends)
    end
  end
end
return failed
