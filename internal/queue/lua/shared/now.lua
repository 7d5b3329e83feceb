-- now: reads the server's clock.
--
-- Defines  t    {seconds, microseconds of the second}, as TIME returns them
--          now  ms, rounded down

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
