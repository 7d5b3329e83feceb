-- succeed: takes the place of an active subscription that failed, and wakes a standby for it.
--
-- KEYS  1 scheduler  hash: next, holder, standby, until
--       2 active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--         then for each group:
--         unack      zset: id -> lease deadline ms
--         waiters    zset: address of an idle subscription -> ms until which it is valid
--         standby    zset: address of a subscription that may become the owner -> ms until which it
--                    is valid
-- ARGV  1 and on  the name of each group
--
-- A subscription has failed if it did not claim within its lease after it was woken, or after its
-- last claim. While it holds messages, only their leases count. Then the place is free, and a
-- standby has to claim within a lease. If it does not, the next standby gets the place. Without a
-- standby, any subscription that claims becomes the owner, and no deadline runs.
-- Returns group and owner for each owner that failed.
-- Twice: the second run finds no deadline that is over.

local scheduler, active = KEYS[1], KEYS[2]

--@use now post schedule wake active

redis.call('HLEN', scheduler)
for i = 3, #KEYS do
  redis.call('ZCARD', KEYS[i])
end
local failed = {}
for g = 1, #ARGV do
  local unack, waiters, standby = KEYS[g * 3], KEYS[1 + g * 3], KEYS[2 + g * 3]
  local group = ARGV[g]
  local a = read_active(group)
  if a and a.ends > 0 and a.ends <= now and redis.call('ZCARD', unack) == 0 then
    if a.owner ~= '-' then
      failed[#failed + 1] = group
      failed[#failed + 1] = a.owner
    end
    local told = wake(standby, 1)
    if told == 0 then
      wake(waiters, 1) -- it may be the owner itself that waits
    end
    redis.call('DEL', waiters)
    a.owner, a.ends = '-', told > 0 and now + a.lease or 0
    write_active(group, a)
    if a.ends > 0 then
      schedule(a.ends)
    end
  end
end
return failed
