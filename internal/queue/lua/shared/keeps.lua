-- keeps: tells which dead messages a group keeps.
--
-- Uses     now
-- Defines  keeps(options), purge_at(options, dead, first)

-- Returns for how many ms a group with these options keeps a dead message, and how many it keeps at
-- most. Each is -1 if there is no limit.
local function keeps(options)
  local retention, most = string.match(options or '', '^%S+ (%S+) (%S+)')
  return tonumber(retention or nil) or -1, tonumber(most or nil) or -1
end

-- Returns when the next message of dead has to go, in ms: now if there are too many, else at the
-- end of the retention of one that died at first, nil for never. Without a message first is nil.
local function purge_at(options, dead, first)
  if not first then return end
  local retention, most = keeps(options)
  if most >= 0 and redis.call('ZCARD', dead) > most then
    return now
  end
  return retention >= 0 and first + retention or nil
end
