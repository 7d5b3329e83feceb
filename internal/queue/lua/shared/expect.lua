-- expect: has the active subscription of a group claim within its lease.
--
-- Uses     now, single, read_active, write_active
-- Defines  expect(waiters, told, gone)

-- Follows wake, and takes its results. If that took the group's active subscription out of waiters,
-- it has to claim within its lease. If nobody heard, another takes its place now. Returns that time
-- in ms, to be scheduled, or nil if there is none. Without single the
-- topic has no such groups.
local function expect(waiters, told, gone)
  local group = single and gone > 0 and string.match(waiters, '}:%l+:(.*)$')
  local a = group and read_active(group)
  if a and a.owner ~= '-' then
    a.ends = told > 0 and now + a.lease or now
    write_active(group, a)
    return a.ends
  end
end
