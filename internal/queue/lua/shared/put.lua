-- put: sets many fields of a hash.
--
-- Uses     each
-- Defines  put(hash, list, first, last)

-- Sets the fields and values list[first] to list[last]. Redis searches a small hash from end to end
-- for each field. One text of more than 64 bytes makes the hash a table, for as long as it exists.
-- So before many fields a long field is set, and deleted afterwards, unless a value is long.
local function put(hash, list, first, last)
  local n = (last - first + 1) / 2
  local there = n > 0 and string.len(list[first + 1]) <= 64 and redis.call('HLEN', hash)
  local unfold = there and there <= 512 and there + n > 16
  local long = string.rep('-', 65)
  if unfold then
    redis.call('HSET', hash, long, '')
  end
  each('HSET', hash, list, first, last)
  if unfold then
    redis.call('HDEL', hash, long)
  end
end
