-- wake: wakes idle subscriptions of a group.
--
-- Uses     now, single
-- Defines  wake(waiters, n)

-- Wakes up to n subscriptions. One that no longer listens is skipped, where PUBLISH tells.
local function wake(waiters, n)
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  while n > 0 do
    local popped = redis.call('ZPOPMIN', waiters, n)
    n = 0
    for i = 1, #popped, 2 do
      local channel, receiver = string.match(popped[i], '^(.*)|(.*)$')
      if redis.pcall('PUBLISH', channel, receiver) == 0 and single then
        n = n + 1
      end
    end
  end
end
