-- origin: reads and writes what a record tells of earlier deliveries, for the history of a group.
--
-- Defines  read_origin(record), with_origin(delayed_for, record, token, delivered)
--
-- The third word of a record is "<delayed for>@<due>:<first>:<last>" then. The three are times in
-- ms: when the message was due at first, and when its first and its last delivery began. 0 is not
-- known, or none.

-- Returns the three times as texts, or nil if the record tells none.
local function read_origin(record)
  return string.match(record or '', '^%d+ %S+ [^ @]*@(%d+):(%d+):(%d+)')
end

-- Returns a third word with the origin. record is the message's record so far, nil for none. token
-- is that of the lease that ends. delivered tells whether the lease was a delivery. A message whose
-- earlier deliveries no history noted has neither a due time nor a first delivery.
local function with_origin(delayed_for, record, token, delivered)
  local since, its_due = string.match(token or '', ':(%d+):(%d+)$')
  local due, first, last = read_origin(record)
  if not due and not record then
    due = its_due
  end
  if delivered and since then
    if first == '0' or not record then
      first = since
    end
    last = since
  end
  return string.match(delayed_for, '^[^@]*') .. '@' .. (due or '0') .. ':' .. (first or '0') .. ':' .. (last or '0')
end
