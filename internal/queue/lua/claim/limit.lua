-- limit: lowers what the subscription may take to what the limit of the group allows.
--
-- Defines  free, how many messages the group may lease now; wanted, what the subscription may take
--          without the limit

local free, wanted
if bucket then
  free, wanted = tokens_of.free(bucket, leased), math.min(limit, slots)
  local share
  if turn then
    share = math.ceil(free / math.max(bucket.woken, 1))
    bucket.woken = math.max(bucket.woken - 1, 0)
  else
    share = math.max(free - bucket.woken - redis.call('ZCOUNT', limited, '(' .. at, '+inf'), 0)
  end
  limit = math.min(wanted, share)
end
