package queue

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// contract is what the header of a Lua file declares: keys, arguments, constants and reply. Scripts
// have a local of each name from it, and Go passes and reads by these names.
type contract struct {
	keys      []string // each once
	each      block    // keys that are there for each group; without a noun there are none
	args      []field  // each once
	blocks    []block  // arguments that are there for each of some things
	constants map[string]string
	reply     []field  // parts that are there once
	refusals  []string // answers of one text that come instead of the reply
	parts     block    // parts of the reply that are there for each of some things

	open  []int // the keys that only the call knows, as places in keys
	first int   // arguments before the first block
}

// field is an argument or a part of a reply.
type field struct{ name, typ string }

// block is a part of a contract that is there for each of some things, such as a group.
type block struct {
	noun   string
	fields []field
	count  int // place of the argument that tells how many there are; -1: it follows from the others
}

// The sections of a header, and an entry of one. The text of an entry may go on in further lines,
// which are indented by more.
var (
	section    = regexp.MustCompile(`^-- (KEYS|ARGV|REPLY|CONSTANTS)( of each (\w+))?$`)
	noSection  = regexp.MustCompile(`^-- (KEYS|ARGV|REPLY|CONSTANTS)\b`)
	entry      = regexp.MustCompile(`^--   (\w+) +(\w[\w ]*):( |$)`)
	constant   = regexp.MustCompile(`^--   (\w+) = (.*?)(  .*)?$`)
	refusing   = regexp.MustCompile(`\{"(\w+)"\}`)
	direct     = regexp.MustCompile(`#KEYS\b|#ARGV\b|\bKEYS\[|\bARGV\[\d`)
	eachOf     = regexp.MustCompile(`^( *)--@each (\w+) (\w+)((?: \w+)+)$`)
	sections   = []string{"KEYS", "ARGV", "REPLY", "CONSTANTS"}
	luaWords   = strings.Fields("and break do else elseif end false for function if in local nil not or repeat return then true until while")
	keyTypes   = []string{"hash", "zset", "list", "string", "stream", "key"}
	argTypes   = []string{"text", "number", "flag"}
	replyTypes = []string{"text", "number", "list", "text or none"}
)

// readContract reads the header of a Lua file, which ends with the first line that is no comment.
func readContract(text string, fault func(format string, args ...any)) *contract {
	c := &contract{constants: map[string]string{}}
	names := map[string]bool{}
	declare := func(name string) {
		if names[name] || slices.Contains(luaWords, name) {
			fault("declares %q twice, or it is a word of Lua", name)
		}
		names[name] = true
	}
	what, noun := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if !strings.HasPrefix(line, "--") {
			break
		}
		// Each process reads all headers when it starts: expressions see lines that can match.
		var m []string
		titled := strings.HasPrefix(line, "-- ") && slices.ContainsFunc(sections, func(name string) bool { return strings.HasPrefix(line[3:], name) })
		if titled {
			m = section.FindStringSubmatch(line)
		}
		if m != nil {
			what, noun = m[1], m[3]
			switch {
			case noun == "":
			case what == "KEYS" && c.each.noun == "":
				c.each.noun = noun
				declare(noun + "_count")
			case what == "ARGV" && !slices.ContainsFunc(c.blocks, func(b block) bool { return b.noun == noun }):
				c.blocks = append(c.blocks, block{noun: noun, count: -1})
				declare("first_" + noun)
				if noun != c.each.noun {
					declare(noun + "_count")
				}
			case what == "REPLY" && c.parts.noun == "":
				c.parts.noun = noun
			default:
				fault("has a second block of %s, or one of constants: %s", what, line)
			}
			continue
		}
		if titled && noSection.MatchString(line) {
			fault("has a section that nobody knows: %s", line)
		}
		if what == "" || !strings.HasPrefix(line, "--   ") {
			what = ""
			if strings.Contains(line, `{"`) {
				for _, m := range refusing.FindAllStringSubmatch(line, -1) {
					c.refusals = append(c.refusals, m[1])
				}
			}
			continue
		}
		if strings.HasPrefix(line, "--    ") { // the text of an entry goes on
			continue
		}
		if what == "CONSTANTS" {
			m := constant.FindStringSubmatch(line)
			if m == nil {
				fault("has a constant without a value: %s", line)
				continue
			}
			declare(m[1])
			c.constants[m[1]] = m[2]
			continue
		}
		if m = entry.FindStringSubmatch(line); m == nil {
			fault("has an entry of %s without a type: %s", what, line)
			continue
		}
		f := field{m[1], m[2]}
		types := map[string][]string{"KEYS": keyTypes, "ARGV": argTypes, "REPLY": replyTypes}[what]
		if !slices.Contains(types, f.typ) {
			fault("has %q of type %q, not of one of %q", f.name, f.typ, types)
		}
		if what != "REPLY" {
			declare(f.name)
		}
		switch {
		case what == "KEYS":
			if k, known := kinds[f.name]; known && k.typ != f.typ {
				fault("has the key %q as a %s, and it is a %s", f.name, f.typ, k.typ)
			}
			if noun == "" {
				c.keys = append(c.keys, f.name)
				if kinds[f.name].key == nil {
					c.open = append(c.open, len(c.keys)-1)
				}
				break
			}
			c.each.fields = append(c.each.fields, f)
			if kinds[f.name].key == nil {
				fault("has the key %q of each %s, which nobody knows", f.name, noun)
			}
		case what == "ARGV" && noun == "":
			c.args = append(c.args, f)
		case what == "ARGV":
			last := &c.blocks[len(c.blocks)-1]
			last.fields = append(last.fields, f)
		case noun == "":
			c.reply = append(c.reply, f)
		default:
			c.parts.fields = append(c.parts.fields, f)
		}
	}
	c.first = len(c.args)
	for i := range c.blocks {
		// A call tells the number of the things of a block, unless that is the number of groups, or
		// the block is the last.
		if b := &c.blocks[i]; b.noun != c.each.noun && i < len(c.blocks)-1 {
			b.count = c.first
			c.first++
		}
	}
	for _, b := range slices.Concat(c.blocks, []block{c.each, c.parts}) {
		if b.noun != "" && len(b.fields) == 0 {
			fault("has nothing of each %s", b.noun)
		}
	}
	return c
}

// locals returns the lines that begin a script: a local of each name that its header declares once.
func (c *contract) locals() string {
	var text strings.Builder
	var names, values []string
	flush := func() {
		if len(names) > 0 {
			fmt.Fprintf(&text, "local %s = %s\n", strings.Join(names, ", "), strings.Join(values, ", "))
		}
		names, values = nil, nil
	}
	add := func(name, value string) {
		if names, values = append(names, name), append(values, value); len(names) == 8 {
			flush()
		}
	}
	for i, name := range c.keys {
		add(name, fmt.Sprintf("KEYS[%d]", i+1))
	}
	flush()
	for i, arg := range c.args {
		add(arg.name, arg.read(fmt.Sprintf("ARGV[%d]", i+1)))
	}
	flush()
	text.WriteString(c.constantLocals())
	if c.each.noun != "" {
		fmt.Fprintf(&text, "local %s_count = (#KEYS - %d) / %d\n", c.each.noun, len(c.keys), len(c.each.fields))
	}
	first := strconv.Itoa(c.first + 1)
	for _, b := range c.blocks {
		fmt.Fprintf(&text, "local first_%s = %s\n", b.noun, first)
		switch {
		case b.noun == c.each.noun:
		case b.count < 0:
			fmt.Fprintf(&text, "local %s_count = (#ARGV - first_%s + 1) / %d\n", b.noun, b.noun, len(b.fields))
		default:
			fmt.Fprintf(&text, "local %s_count = tonumber(ARGV[%d])\n", b.noun, b.count+1)
		}
		first = fmt.Sprintf("first_%s + %s_count * %d", b.noun, b.noun, len(b.fields))
	}
	return text.String()
}

// constantLocals returns the line of the constants.
func (c *contract) constantLocals() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.constants)) {
		fmt.Fprintf(&text, "local %s = %s\n", name, c.constants[name])
	}
	return text.String()
}

// read returns the Lua expression that reads an argument.
func (f field) read(from string) string {
	switch f.typ {
	case "number":
		return "tonumber(" + from + ")"
	case "flag":
		return from + " == '1'"
	}
	return from
}

// eachLine returns the line that a directive such as "--@each group g ready retry" stands for: a
// local of each name, of the group with the number g.
func (c *contract) eachLine(line string) (string, error) {
	m := eachOf.FindStringSubmatch(strings.TrimRight(line, "\n"))
	if m == nil {
		return "", fmt.Errorf("has a directive that nobody knows: %s", strings.TrimSpace(line))
	}
	indent, noun, number, names := m[1], m[2], m[3], strings.Fields(m[4])
	values := make([]string, len(names))
	for i, name := range names {
		if at := c.each.place(noun, name); at >= 0 {
			n := len(c.each.fields)
			values[i] = fmt.Sprintf("KEYS[%s]", times(number, n, len(c.keys)-n+at+1))
		}
		for b, its := range c.blocks {
			at := its.place(noun, name)
			if at < 0 {
				continue
			}
			n := len(its.fields)
			from := fmt.Sprintf("ARGV[%s]", times(number, n, c.first-n+at+1))
			if b > 0 { // where the block begins depends on the call
				from = fmt.Sprintf("ARGV[first_%s + (%s - 1) * %d + %d]", noun, number, n, at)
			}
			values[i] = its.fields[at].read(from)
		}
		if values[i] == "" {
			return "", fmt.Errorf("has no %q of each %s", name, noun)
		}
	}
	return fmt.Sprintf("%slocal %s = %s\n", indent, strings.Join(names, ", "), strings.Join(values, ", ")), nil
}

// times returns the Lua expression for number * n + more.
func times(number string, n, more int) string {
	product := number
	if n > 1 {
		product = fmt.Sprintf("%s * %d", number, n)
	}
	switch {
	case more > 0:
		return fmt.Sprintf("%d + %s", more, product)
	case more < 0:
		return fmt.Sprintf("%s - %d", product, -more)
	}
	return product
}

// place returns the place of a name in the block of a noun, or -1.
func (b *block) place(noun, name string) int {
	if b.noun != noun {
		return -1
	}
	return slices.IndexFunc(b.fields, func(f field) bool { return f.name == name })
}

// Constant returns a number that the header of the script, or of a snippet of it, declares.
func (s *Script) Constant(name string) int {
	numbers := s.constants(name)
	if len(numbers) != 1 {
		panic(fmt.Sprintf("script %s: the constant %q is not one number", s.name, name)) // the files are part of the build
	}
	return numbers[0]
}

// constants returns the numbers of a constant such as {1, 2, 5}.
func (s *Script) constants(name string) (numbers []int) {
	for text := range strings.SplitSeq(strings.Trim(s.contract.constants[name], "{}"), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			panic(fmt.Sprintf("script %s: the constant %q is %q", s.name, name, text)) // as above
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// constantText returns a constant that is a text.
func (s *Script) constantText(name string) string {
	return strings.Trim(s.contract.constants[name], "'")
}
