-- marks: reads and writes the layout of a topic, "<version>" and a word for each thing that an
-- older program would not see.
--
-- Uses     layout
-- Defines  layout_with(single, bounded), is_marked(text, mark), is_known(text)

-- Returns the layout of a topic that has, or once had, groups with SingleActive, or with a limit.
local function layout_with(single, bounded)
  return layout .. (single and ' single' or '') .. (bounded and ' limits' or '')
end

local function is_marked(text, mark)
  return string.find(text .. ' ', ' ' .. mark .. ' ', 1, true) and true
end

-- Tells whether this program knows a layout, which is not that of a topic with a stream.
local function is_known(text)
  return text == layout_with(is_marked(text, 'single'), is_marked(text, 'limits'))
end
