-- upcoming: counts how many messages become due in each of some equal spans of time.
--
-- KEYS  1 pending  zset: id -> due ms
--       2 retry    zset of a group: id -> due ms
-- ARGV  1 from     ms at which the first span begins; "" for now
--       2 width    of a span, ms
--       3 spans    their number (at most 1000)
--
-- A message that is overdue is in no span that begins now.
-- Returns {from, then for each span: pending, retries}.
-- Twice: it only reads.

local pending, retry = KEYS[1], KEYS[2]
local from, width, spans = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

if not from then
  local t = redis.call('TIME')
  from = t[1] * 1000 + math.floor(t[2] / 1000)
end
local reply = {string.format('%d', from)}
for i = 0, spans - 1 do
  local first = string.format('%d', from + i * width)
  local before = '(' .. string.format('%d', from + (i + 1) * width)
  reply[#reply + 1] = redis.call('ZCOUNT', pending, first, before)
  reply[#reply + 1] = redis.call('ZCOUNT', retry, first, before)
end
return reply
