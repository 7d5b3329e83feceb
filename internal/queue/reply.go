package queue

import (
	"fmt"
	"slices"
	"time"
)

// Reply is what a script answered, or the part of it that is about one thing. Its parts have the
// names that the header of the script declares. A name that the header does not declare panics.
type Reply struct {
	// Refusal is an answer such as "stale", which says why there is no other; "" if there is one.
	Refusal string

	script *Script
	fields []field
	parts  []any
}

// Read returns an error if the parts are not those that the header of the script declares.
func (s *Script) Read(parts []any) (Reply, error) {
	c := s.contract
	r := Reply{script: s, fields: c.reply, parts: parts}
	rest, each := len(parts)-len(c.reply), len(c.parts.fields)
	if len(parts) == 1 && slices.Contains(c.refusals, Text(parts[0])) {
		r.Refusal = Text(parts[0])
		return r, nil
	}
	if rest < 0 || each == 0 && rest > 0 || each > 0 && rest%each != 0 {
		return Reply{}, fmt.Errorf("%s: unexpected reply of %d parts", s.name, len(parts))
	}
	for i, part := range parts {
		f := field{}
		if i < len(c.reply) {
			f = c.reply[i]
		} else {
			f = c.parts.fields[(i-len(c.reply))%each]
		}
		if !f.has(part) {
			return Reply{}, fmt.Errorf("%s: unexpected reply: part %d of %d, %s, is %.64q, a %T", s.name, i+1, len(parts), f.name, fmt.Sprint(part), part)
		}
	}
	return r, nil
}

// Read returns the reply of the call.
func (c *Call) Read() (Reply, error) {
	parts, err := c.cmd.Slice()
	if err != nil {
		return Reply{}, err
	}
	return c.script.Read(parts)
}

// has tells whether a part has the type of the field.
func (f field) has(part any) bool {
	switch part.(type) {
	case nil:
		return f.typ == "text or none"
	case string:
		return f.typ == "text" || f.typ == "text or none"
	case int64:
		return f.typ == "number"
	case []any:
		return f.typ == "list"
	}
	return false
}

// Part returns a part of the reply.
func (r Reply) Part(name string) any {
	for i := range r.fields {
		if r.fields[i].name == name {
			return r.parts[i]
		}
	}
	panic(fmt.Sprintf("the reply of script %s has no %q", r.script.name, name))
}

// Text returns a part that is a text, or "" if there is none.
func (r Reply) Text(name string) string { return Text(r.Part(name)) }

// Time returns a part that is a time in ms, or zero if it is none.
func (r Reply) Time(name string) time.Time { return Instant(r.Text(name)) }

// Number returns a part that is a number.
func (r Reply) Number(name string) int {
	n, _ := r.Part(name).(int64)
	return int(n)
}

// Flag tells whether a number is 1.
func (r Reply) Flag(name string) bool { return r.Number(name) == 1 }

// List returns a part that is a list.
func (r Reply) List(name string) []any {
	list, _ := r.Part(name).([]any)
	return list
}

// Texts returns a list of texts.
func (r Reply) Texts(name string) []string { return texts(r.List(name)) }

func texts(parts []any) (texts []string) {
	for _, part := range parts {
		texts = append(texts, Text(part))
	}
	return texts
}

// Each returns the parts of the reply that are about one thing each.
func (r Reply) Each() []Reply {
	block := r.script.contract.parts
	if r.Refusal != "" || block.noun == "" || len(r.parts) == len(r.fields) {
		return nil
	}
	rest := r.parts[len(r.fields):]
	each := make([]Reply, 0, len(rest)/len(block.fields))
	for parts := range slices.Chunk(rest, len(block.fields)) {
		each = append(each, Reply{script: r.script, fields: block.fields, parts: parts})
	}
	return each
}
