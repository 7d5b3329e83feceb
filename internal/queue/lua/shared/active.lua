-- active: reads and writes which subscription of a group with SingleActive may claim.
--
-- Uses     active
-- Defines  read_active(group), write_active(group, a)

-- Returns the group's record as a table, or nil. owner is a subscription, "-" if the place is free.
-- epoch grows with each owner. ends is when the owner, or else the next one, has failed to claim,
-- in ms; 0: it need not claim. lease is the ms that the last owner's leases last.
local function read_active(group)
  local owner, epoch, ends, lease =
    string.match(redis.call('HGET', active, group) or '', '^(%S+) (%d+) (%d+) (%d+)$')
  return owner and {owner = owner, epoch = tonumber(epoch), ends = tonumber(ends), lease = tonumber(lease)}
end

local function write_active(group, a)
  redis.call('HSET', active, group, string.format('%s %d %d %d', a.owner, a.epoch, a.ends, a.lease))
end
