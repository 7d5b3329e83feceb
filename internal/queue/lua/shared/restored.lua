-- restored: remembers the messages that were brought back, by marks with an end.
--
-- Uses     now
-- CONSTANTS
--   mark_lasts = 3600000  ms that a message is remembered for, after it is due or came back
--
-- Defines  mark_lasts, mark(marks, id, due), bound(marks), follow(marks, id, due)
--
-- restored has the marks of messages that waited for their due time, and restored_retries those of
-- a group's retries.

-- Marks a message that is due then.
local function mark(marks, id, due)
  redis.call('ZADD', marks, string.format('%d', math.max(due, now) + mark_lasts), id)
end

-- Has the key go with its last mark, and drops some of those that are over. A user who may not have
-- keys expire goes on: the key stays.
local function bound(marks)
  local over = redis.call('ZRANGEBYSCORE', marks, '-inf', now, 'LIMIT', 0, 100)
  if over[1] then
    redis.call('ZREM', marks, unpack(over))
  end
  local last = redis.call('ZRANGE', marks, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.pcall('PEXPIRE', marks, string.format('%d', last - now))
  end
end

-- Keeps the mark of a message that gets another due time, if it has one.
local function follow(marks, id, due)
  if redis.call('ZSCORE', marks, id) then
    mark(marks, id, due)
    bound(marks)
  end
end
