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
    local others = redis.call('ZCOUNT', limited, '(' .. at, '+inf')
    if tonumber(redis.call('ZSCORE', limited, address) or 0) > now then
      others = others - 1
    end
    share = math.max(free - bucket.woken - others, 0)
  end
  limit = math.min(wanted, share, free)
end
