-- marks: reads and writes the layout of a topic, "<version>" and a word for each thing that an
-- older program would not see.
--
-- Uses     layout
-- Defines  layout_with(single, bounded, recorded), is_marked(text, mark), marked_for(text, o),
--          is_known(text)

-- Returns the layout of a topic that has, or once had, groups with SingleActive, with a limit, or
-- with a history.
local function layout_with(single, bounded, recorded)
  return layout .. (single and ' single' or '') .. (bounded and ' limits' or '') .. (recorded and ' history' or '')
end

local function is_marked(text, mark)
  return string.find(text .. ' ', ' ' .. mark .. ' ', 1, true) and true
end

-- Returns the layout of a topic of this layout that a group with these options is added to.
local function marked_for(text, o)
  return layout_with(o.single or is_marked(text, 'single'), o.limit or is_marked(text, 'limits'),
    o.history or is_marked(text, 'history'))
end

-- Tells whether this program knows a layout, which is not that of a topic with a stream.
local function is_known(text)
  return text == layout_with(is_marked(text, 'single'), is_marked(text, 'limits'), is_marked(text, 'history'))
end
