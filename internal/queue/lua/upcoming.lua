-- upcoming: counts how many messages become due in each of some equal spans of time.
--
-- KEYS
--   pending  zset: id -> due ms
--   retry    zset: of a group: id -> due ms
-- ARGV
--   from   number: ms at which the first span begins; "" for now
--   width  number: of a span, ms
--   spans  number: their number (at most 1000)
--
-- A message that is overdue is in no span that begins now.
-- Returns
-- REPLY
--   begins  text: ms at which the first span begins
-- REPLY of each span
--   waiting   number:
--   retrying  number:
-- Twice: it only reads.

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
