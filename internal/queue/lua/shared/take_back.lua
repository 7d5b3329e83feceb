-- take_back: takes back the expiries of leases that are settled or given back too late.
--
-- Uses     suspects
-- Defines  take_back(ids, tokens, held)
--
-- The call comes before all writes: it finds a key of a wrong type.

-- Counts one expiry less for each message whose lease is not the token, but whose last lease
-- expired with it. The process that held the message lives, so the message did not end it. A
-- delivery that was counted stays counted.
local function take_back(ids, tokens, held)
  local late, lost = {}, {}
  for i, id in ipairs(ids) do
    if held[i] ~= tokens[i] then
      late[#late + 1], lost[#lost + 1] = id, tokens[i]
    end
  end
  if #late == 0 or redis.call('HLEN', suspects) == 0 then return end
  for i, noted in ipairs(redis.call('HMGET', suspects, unpack(late))) do
    local expiries, alone, token = string.match(noted or '', '^(%d+) (%S+) (%S+:%d+)$')
    if token == lost[i] then
      redis.call('HDEL', suspects, late[i]) -- after a deletion, a script may write at maxmemory too
      if tonumber(expiries) > 1 then
        -- After one expiry, a message need not be alone.
        alone = tonumber(expiries) > 2 and alone or '-'
        redis.call('HSET', suspects, late[i], string.format('%d', expiries - 1) .. ' ' .. alone .. ' -')
      end
    end
  end
end
