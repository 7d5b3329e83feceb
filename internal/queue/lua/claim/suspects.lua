-- suspects: reads the entries that the subscription may take. A suspect ends them if the
-- subscription would hold too many with it.
--
-- Defines  entries, ids, records, noted, allowed, suspected, rested, blocked

-- Every dead message has a record, and every suspect. Most often there are no others.
local recorded = redis.call('HLEN', deliveries)
recorded = recorded > 0 and limit > 0 and left > 0 and recorded > redis.call('ZCARD', dead)
local suspected = recorded and redis.call('HLEN', suspects) > 0
local rested = suspected and not single and redis.call('ZCARD', resting) > 0
local room, blocked = math.huge, 0 -- messages that may be held, with those of this claim
if suspected then
  local first = ids_of(redis.call('LRANGE', ready, 0, 0))[1]
  room = company(expiries_of(redis.call('HGET', suspects, first)))
  if held + 1 > room then
    blocked = room
  end
end
local entries, records, noted = {}, {}, {}
if limit > 0 and left > 0 and blocked == 0 then
  entries = redis.call('LRANGE', ready, 0, math.min(limit, room - held) - 1)
end
local ids = ids_of(entries)
local allowed = #ids
if recorded and allowed > 0 then
  records = redis.call('HMGET', deliveries, unpack(ids))
end
if suspected and allowed > 0 then
  noted = redis.call('HMGET', suspects, unpack(ids))
  for i = 2, #noted do
    room = math.min(room, company(expiries_of(noted[i])))
    if held + i > room then
      allowed = i - 1
      break
    end
  end
end
