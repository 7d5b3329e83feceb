-- wake: wakes idle subscriptions of a group.
--
-- Uses     now, single, post
-- Defines  wake(waiters, n)

-- Wakes up to n subscriptions. One that no longer listens is skipped, if the reply tells. PUBLISH
-- tells on a single server. SPUBLISH always tells, as only the topic's own node serves it. It fails
-- if the slot of an old address has moved to another node, or if the server has no such command.
-- Returns how many were told, and how many are out of waiters.
local function wake(waiters, n)
  local told, gone = 0, redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  while n > 0 do
    local popped = redis.call('ZPOPMIN', waiters, n)
    n = 0
    for i = 1, #popped, 2 do
      local heard, sharded = post(popped[i])
      if (heard or 0) == 0 and (single or sharded) then
        n = n + 1
      else
        told = told + 1
      end
    end
    gone = gone + #popped / 2
  end
  return told, gone
end
