-- wake: wakes idle subscriptions of a group.
--
-- Uses     now, post
-- Defines  wake(waiters, n)

-- Wakes up to n subscriptions, and besides those that do not listen on this server. On a cluster
-- PUBLISH counts receivers of this node only, and each subscription listens on its topic's node.
-- SPUBLISH fails if the slot of an old address has moved to another node, or if the server has no
-- such command.
-- Returns how many were told, and how many are out of waiters.
local function wake(waiters, n)
  local told, gone = 0, redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  while n > 0 do
    local popped = redis.call('ZPOPMIN', waiters, n)
    n = 0
    for i = 1, #popped, 2 do
      if post(popped[i]) == 0 then
        n = n + 1
      else
        told = told + 1
      end
    end
    gone = gone + #popped / 2
  end
  return told, gone
end
