-- keeps: tells when dead messages of a group have to go.
--
-- Uses     now, read_options
-- Defines  purge_at(options, dead, first)

-- Returns when the next message of dead has to go, in ms: now if there are more than a group with
-- these options keeps, else at the end of the retention of one that died at first, nil for never.
-- Without a message first is nil.
local function purge_at(options, dead, first)
  local o = first and read_options(options)
  if not o then return end
  if o.max_dead >= 0 and redis.call('ZCARD', dead) > o.max_dead then
    return now
  end
  return o.retention >= 0 and first + o.retention or nil
end
