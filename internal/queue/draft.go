package queue

import (
	"fmt"
	"slices"
	"time"
)

// Target is what a call is about. The keys of the topic follow from it.
type Target struct {
	Group  string   // whose keys the script has; "": none
	Groups []string // that the script has a block of keys for
	Window string   // "": none
}

// Draft is a call that gets its arguments. Each has the name that the header of the script
// declares. A name that is missing, unknown or given twice is an error of the call.
type Draft struct {
	script *Script
	keys   []string
	args   []any
	groups int // that keys has a block for
	block  int // that got arguments last; -1: none
	things int // of that block
	fault  error
}

// contractError is a mistake in how a call is made. It is an error as a server's: the call is
// wrong, and a repeat would be so too.
type contractError string

func (e contractError) Error() string { return string(e) }

func (e contractError) RedisError() {}

// Draft begins a call on the topic. pairs are names and values, of all arguments that are there
// once, and of the keys that the target does not tell.
func (t *Topic) Draft(s *Script, on Target, pairs ...any) *Draft {
	d := s.draft(s.keysOf(t.keys, on), len(on.Groups), 0, pairs)
	// The names of groups are known, too.
	if c := s.contract; len(c.blocks) > 0 && c.blocks[0].noun == c.each.noun && c.blocks[0].fields[0].name == "name" {
		for _, group := range on.Groups {
			d.Each(c.each.noun, "name", group)
		}
	}
	return &d
}

// NewCall returns a call without blocks of arguments, but for the names of groups.
func (t *Topic) NewCall(s *Script, on Target, pairs ...any) *Call {
	return t.Draft(s, on, pairs...).Call()
}

// keysOf returns the keys of a call. Those that only the call knows are "".
func (s *Script) keysOf(k Keys, on Target) []string {
	c := s.contract
	keys := make([]string, 0, len(c.keys)+len(c.each.fields)*len(on.Groups))
	for _, name := range c.keys {
		key := ""
		if of := kinds[name].key; of != nil {
			key = of(k, on)
		}
		keys = append(keys, key)
	}
	for _, group := range on.Groups {
		for _, f := range c.each.fields {
			keys = append(keys, kinds[f.name].key(k, Target{Group: group}))
		}
	}
	return keys
}

// draft begins a call with keys of keysOf, which it does not change, for so many groups. There is
// room for more arguments.
func (s *Script) draft(keys []string, groups, more int, pairs []any) Draft {
	c := s.contract
	d := Draft{script: s, keys: keys, args: make([]any, c.first, c.first+more), groups: groups, block: -1}
	if len(pairs)%2 != 0 {
		d.fail("an argument has no name, or no value")
		return d
	}
	var given uint64 // of open
	for i, next := 0, 0; i < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		at := next
		if at >= len(c.args) || c.args[at].name != name { // most often they come in order
			at = slices.IndexFunc(c.args, func(f field) bool { return f.name == name })
		}
		if at >= 0 {
			if d.args[at] != nil {
				d.fail("%q is given twice", name)
			}
			d.args[at] = encode(pairs[i+1])
			next = at + 1
			continue
		}
		open := slices.IndexFunc(c.open, func(place int) bool { return c.keys[place] == name })
		key, _ := pairs[i+1].(string)
		switch {
		case open < 0:
			d.fail("nobody knows %q", name)
			continue
		case key == "":
			d.fail("the key %q is empty", name)
		case given&(1<<open) != 0:
			d.fail("%q is given twice", name)
		case given == 0:
			d.keys = slices.Clone(keys)
		}
		given |= 1 << open
		d.keys[c.open[open]] = key
	}
	for open, place := range c.open {
		if given&(1<<open) == 0 {
			d.fail("%q is missing", c.keys[place])
		}
	}
	for i := range c.args {
		if d.args[i] == nil {
			d.fail("%q is missing", c.args[i].name)
		}
	}
	for i := len(c.args); i < c.first; i++ {
		d.args[i] = 0
	}
	return d
}

// fail notes the first mistake.
func (d *Draft) fail(format string, args ...any) {
	if d.fault == nil {
		d.fault = contractError(fmt.Sprintf("script "+d.script.name+": "+format, args...))
	}
}

// Each adds the arguments of one thing of a block. The blocks come in the order of the header.
func (d *Draft) Each(noun string, pairs ...any) {
	blocks := d.script.contract.blocks
	if d.block < 0 || blocks[d.block].noun != noun {
		d.end()
		at := slices.IndexFunc(blocks, func(b block) bool { return b.noun == noun })
		if at <= d.block {
			d.fail("there is no block of each %s, or it comes too late", noun)
			return
		}
		d.block, d.things = at, 0
	}
	d.things++
	fields, at := blocks[d.block].fields, len(d.args)
	if len(pairs) != 2*len(fields) {
		d.fail("each %s has %d names and values, not %d", noun, len(pairs), 2*len(fields))
		return
	}
	for i := range fields { // most often they come in order
		if name, _ := pairs[2*i].(string); name == fields[i].name {
			d.args = append(d.args, encode(pairs[2*i+1]))
			continue
		}
		d.args = append(d.args[:at], make([]any, len(fields))...)
		d.place(noun, fields, d.args[at:], pairs)
		return
	}
}

// place puts the values of one thing where the header has their names.
func (d *Draft) place(noun string, fields []field, args, pairs []any) {
	for i := 0; i < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		switch at := slices.IndexFunc(fields, func(f field) bool { return f.name == name }); {
		case at < 0:
			d.fail("nobody knows %q of each %s", name, noun)
		case args[at] != nil:
			d.fail("%q of each %s is given twice", name, noun)
		default:
			args[at] = encode(pairs[i+1])
		}
	}
}

// end ends the block that got arguments last.
func (d *Draft) end() {
	if d.block < 0 {
		return
	}
	b := d.script.contract.blocks[d.block]
	if b.count >= 0 {
		d.args[b.count] = d.things
	}
	if b.noun == d.script.contract.each.noun && d.things != d.groups {
		d.fail("%d of %d %ss have arguments", d.things, d.groups, b.noun)
	}
}

// Call returns the call.
func (d *Draft) Call() *Call {
	d.end()
	if c := d.script.contract; d.block < 0 && d.groups > 0 && slices.ContainsFunc(c.blocks, func(b block) bool { return b.noun == c.each.noun }) {
		d.fail("no %s has arguments", c.each.noun)
	}
	return &Call{script: d.script, keys: d.keys, args: d.args, fault: d.fault}
}

// encode returns an argument as scripts read it.
func encode(value any) any {
	switch value := value.(type) {
	case bool:
		if value {
			return "1"
		}
		return "0"
	case time.Duration:
		return millis(value)
	case Due:
		return value.encode()
	}
	return value
}

// set gives an argument that the call has once another value.
func (c *Call) set(name string, value any) {
	at := slices.IndexFunc(c.script.contract.args, func(f field) bool { return f.name == name })
	if at < 0 {
		c.fault = contractError("script " + c.script.name + ": nobody knows \"" + name + "\"")
		return
	}
	c.args[at] = encode(value)
}
