-- fields_of: reads the form of a message that goes into a stream.
--
-- Defines  fields_of(body)

-- Returns the fields and values of a stream entry with this body, or nil if it has another form.
local function fields_of(body)
  local uuid, metadata, at = string.match(body, '^(%d+) (%d+) ()')
  if not at or at + uuid + metadata > #body + 1 then
    return nil
  end
  local rest = at + uuid + metadata
  return {
    '_watermill_message_uuid', string.sub(body, at, at + uuid - 1),
    'metadata', string.sub(body, at + uuid, rest - 1),
    'payload', string.sub(body, rest),
  }
end
