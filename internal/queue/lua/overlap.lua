-- overlap: keeps which occurrence of a recurring schedule a group handles.
--
-- KEYS
--   handling  string: "<occurrence>[,<next>,<until>] <token> <ms until which that is valid>",
--             expiring
--   stats     hash: counters of the group
-- ARGV
--   what        text: "begin", "extend" or "end"
--   occurrence  text:
--   token       text: of this handling
--   lease       number: ms for which it is valid
--   again       number: ms for which an occurrence that was delivered before is the next one; 0
--               for a new occurrence; for "begin"
--   counts      flag: "1" if a new occurrence that may not begin is left out; for "begin"
--
-- Another handling of the same occurrence takes over, because the lease of its message was lost.
-- An occurrence that was delivered before and finds another one in hand is the next one: no other
-- begins before it, for a time in which it is delivered again. The first that asks is next.
-- Returns 1, or 0 if another occurrence is handled or is next ("begin"), or this handling was lost.
-- Twice: the second run does the same once more, and counts once more. A second "end" finds
-- nothing.

--@use now

if counts then
  redis.call('HLEN', stats) -- finds a key of a wrong type before the first write
end
local held = redis.call('GET', handling) or ''
local others, coming, other, valid = string.match(held, '^([^ ,]+)(%S*) (%S+) (%d+)$')
local lives = valid and tonumber(valid) > now
local next_one, till = string.match(coming or '', '^,(%d+),(%d+)$')
if not till or tonumber(till) <= now then
  next_one, till = nil, nil
end

-- Writes who is in hand, until when, and who is next.
local function write(who, whose, ends)
  local last = math.max(ends, tonumber(till or 0))
  if last <= now then
    redis.call('DEL', handling)
    return
  end
  local suffix = next_one and ',' .. next_one .. ',' .. till or ''
  local text = who .. suffix .. ' ' .. whose .. ' ' .. string.format('%d', ends)
  redis.call('SET', handling, text, 'PX', (last - now) * 2)
end

if what == 'begin' then
  if lives and others ~= occurrence or next_one and next_one ~= occurrence then
    if again > 0 and (not next_one or next_one == occurrence) then
      next_one, till = occurrence, string.format('%d', now + again)
      write(lives and others or '-', lives and other or '-', lives and tonumber(valid) or 0)
    elseif counts and again == 0 then
      redis.call('HDEL', stats, '') -- after a deletion, a script may write at maxmemory too
      redis.call('HINCRBY', stats, 'skipped', 1)
    end
    return 0
  elseif next_one == occurrence then
    next_one, till = nil, nil
  end
elseif other ~= token then
  return 0
elseif what == 'end' then
  write('-', '-', 0)
  return 1
end
write(occurrence, token, now + lease)
return 1
