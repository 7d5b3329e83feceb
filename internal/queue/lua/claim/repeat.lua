-- repeat: answers a repeat of the last claim with those of its messages that are still leased.

local last = redis.call('GET', claim)
local last_number, since = string.match(last or '', '^(%d+):(%d+)')
if last and tonumber(last_number) >= tonumber(number) then
  local token = token_of(since)
  local entries = {}
  for entry in string.gmatch(last, ' (%S+)') do
    entries[#entries + 1] = entry
  end
  local ids = ids_of(entries)
  local tokens, own, own_entries = redis.call('HMGET', leases, unpack(ids)), {}, {}
  local bodies, records, expiries = {}, {}, {}
  for i in ipairs(ids) do
    own[i] = token .. string.sub(entries[i], id_length + 1)
  end
  take_back(ids, own, tokens)
  for i, id in ipairs(ids) do
    if tokens[i] == own[i] then
      own_entries[#own_entries + 1] = entries[i]
      bodies[#bodies + 1] = redis.call('HGET', messages, id) or ''
      records[#records + 1] = redis.call('HGET', deliveries, id) or ''
      expiries[#expiries + 1] = expiries_of(redis.call('HGET', suspects, id))
    end
  end
  local left = redis.call('LLEN', ready) > 0 and 1 or 0
  return answer(left, 0, 0, 0, table.concat(own_entries, ' '), bodies, records, expiries, since)
end
