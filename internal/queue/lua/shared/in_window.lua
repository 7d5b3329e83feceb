-- in_window: finds messages in the takeover window.
--
-- Uses     id_length
-- Defines  in_window(kept, ids)

-- Returns a table: id -> 1 if the window has the message, else 0. kept is the ready list of the
-- window, or nil without one.
local function in_window(kept, ids)
  local has = {}
  for _, id in ipairs(ids) do
    has[id] = 0
  end
  for _, entry in ipairs(kept and redis.call('LRANGE', kept, 0, -1) or {}) do
    local id = string.sub(entry, 1, id_length)
    if has[id] then
      has[id] = 1
    end
  end
  return has
end
