-- window: knows the takeover window of a topic's first group.
--
-- Uses     now
-- CONSTANTS
--   window_prefix = 'window:'  of the names of windows and copies
--   window_size = 10000        messages from which on the window takes no more
--
-- Defines  window_prefix, window_size, is_window(group), takes(ends, groups, ready)
--
-- The window is the group "window:<ms>" of the set, with the time at which it ends. It has no
-- subscriptions, and keeps what the others get. "window:<ms>:<group>" is the copy that a new group
-- makes of it. That is not in the set, and in idle.

-- Tells whether the name is that of a window or of a copy.
local function is_window(group)
  return string.find(group, '^' .. window_prefix .. '%d+$') or string.find(group, '^' .. window_prefix .. '%d+:')
end

-- Tells whether the last one of some groups, whose ready list is given, is a window that takes
-- messages. Without a window, ends is 0. A window that has passed a message over takes none later,
-- so that it has all or is closed.
local function takes(ends, groups, ready)
  return ends > now and groups > 1 and redis.call('LLEN', ready) < window_size
end
