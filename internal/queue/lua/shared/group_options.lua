-- group_options: reads the settings of a group, as GroupOptions writes them.
--
-- Defines  read_options(text), number_of(text)

local function number_of(text)
  return string.find(text, '^%d+$') and tonumber(text) or -1
end

-- Returns a limit, "rate:burst:at_once" with the rate in messages a second, as a table, nil if
-- there is none. Without a rate it has no interval and no burst, without a number no at_once. The
-- interval is in microseconds, rounded up to quarters, which are exact in sums.
local function read_limit(text)
  local rate, burst, at_once = string.match(text or '', '^(%S+):(%d+):(%d+)$')
  rate, burst, at_once = tonumber(rate or nil) or 0, tonumber(burst or nil), tonumber(at_once or nil) or 0
  if rate <= 0 and at_once <= 0 then return end
  local l = {at_once = at_once > 0 and at_once or nil}
  if rate > 0 then
    l.interval, l.burst = math.ceil(4000000 / rate) / 4, burst
  end
  return l
end

-- Returns the settings as a table, or nil if there is no text, because there is no such group.
-- max_deliveries, retention in ms and max_dead are -1 without a limit. single tells whether the
-- group has SingleActive, and whole whether leases last when their process is gone. limit and
-- history are those of an operator, if one has set any, else those of the last subscriber; nil
-- without one. history is "<ms>:<number>", the bounds of what is kept.
local function read_options(text)
  if not text then return end
  local max_deliveries, retention, max_dead, words = string.match(text, '^(%S*) ?(%S*) ?(%S*)(.*)$')
  local function has(word)
    return string.find(words .. ' ', ' ' .. word .. ' ', 1, true) and true or false
  end
  max_deliveries, retention, max_dead = number_of(max_deliveries), number_of(retention), number_of(max_dead)
  local single, whole, limit, history = has('single'), has('whole'), nil, nil
  if string.find(words, ':', 1, true) then
    limit = read_limit(string.match(words, ' set:(%S+)') or string.match(words, ' limit:(%S+)'))
    history = string.match(words, ' set_history:(%S+)') or string.match(words, ' history:(%S+)')
    history = history ~= '0:0' and history or nil
  end
  return {max_deliveries = max_deliveries, retention = retention, max_dead = max_dead, single = single, whole = whole,
    limit = limit, history = history}
end
