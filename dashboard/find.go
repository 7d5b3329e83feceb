package dashboard

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// Bounds of one search of the page. “Look further” goes on.
const (
	findLimit = 50
	findMost  = 100_000
	findFor   = 10 * time.Second

	maxFinds       = 4 // at the same time
	maxFindsOfUser = 2
)

// findPage is the page of a search for messages.
type findPage struct {
	Text, By, Topic string
	Contents        bool
	Asked, First    bool
	Rows            []foundRow
	Past            []endedRow // messages that ended
	Said            []string   // where it looked
	Next            string     // address of the rest of the search
}

// foundRow is a message that was found. Its Place is that of messageRow: the first of Places.
type foundRow struct {
	messageRow
	At []foundPlace
}

// foundPlace is a state of a message.
type foundPlace struct {
	admin.Place
	Words string
}

// handle is a way to name a message.
type handle struct {
	By, Words string
	contents  bool // only for users who may see contents
}

var handles = []handle{
	{"", "Any of these", false}, {"id", "ID", false}, {"delay-id", "Delay ID", false}, {"uuid", "UUID", false},
	{"key", "Partition key", true}, {"metadata", "Metadata, key=value", true}, {"text", "Text in the payload", true},
}

// handlesOf are the handles that a user may look for.
func handlesOf(contents bool) (all []handle) {
	for _, h := range handles {
		if contents || !h.contents {
			all = append(all, h)
		}
	}
	return all
}

// Handles are the ways to name a message, for the template.
func (p findPage) Handles() []handle { return handlesOf(p.Contents) }

// partitionKey is partition.KeyMetadata.
const partitionKey = "partition_key"

var (
	errUnseen   = &refusal{http.StatusForbidden, "You may not look for this, because you may not see it."}
	errPair     = bad("Write metadata as key=value, such as kind=gift.")
	errSearches = &refusal{http.StatusTooManyRequests, "Too many searches run. Wait until one ends."}
)

// filter returns the filter of the form.
func (p *findPage) filter(hidden hiddenNames) (f admin.Filter, err error) {
	for _, h := range handles {
		if h.By == p.By && h.contents && !p.Contents {
			return f, errUnseen
		}
	}
	switch p.By {
	case "":
		f.Any = p.Text
	case "id":
		f.IDs = map[string]bool{p.Text: true}
	case "delay-id":
		f.DelayID = p.Text
	case "uuid":
		f.UUID = p.Text
	case "key":
		if f.Key = p.Text; hidden.hide(partitionKey) {
			err = errUnseen
		}
	case "metadata":
		key, value, ok := strings.Cut(p.Text, "=")
		if f.Metadata = map[string]string{key: value}; !ok {
			err = errPair
		} else if hidden.hide(key) {
			err = errUnseen
		}
	case "text":
		f.Text = p.Text
	default:
		err = bad("There is no such way to name a message.")
	}
	return f, err
}

func (d *Dashboard) find(c *call) (*view, error) {
	p := &findPage{Text: strings.TrimSpace(c.q("q")), By: c.q("by"), Topic: c.q("t"), Contents: c.user.Contents, First: c.q("cursor") == ""}
	v := &view{Title: "Find a message", Crumbs: []crumb{{"Topics", d.address("/")}}, Now: d.sweep.now(), Data: p}
	if p.Topic != "" {
		v.Crumbs = append(v.Crumbs, crumb{p.Topic, d.address("/topic", "t", p.Topic)})
	}
	if p.Text == "" {
		return v, nil
	}
	filter, err := p.filter(d.names)
	if err != nil {
		return nil, err
	}
	if d.finds.take(c.user.Name) != granted {
		return nil, errSearches
	}
	defer d.finds.give(c.user.Name)
	search := admin.Search{Filter: filter, Limit: findLimit, Most: findMost, Cursor: c.q("cursor"), See: func(m admin.Message) admin.Message { return d.seen(m, p.Contents) }}
	if p.Topic != "" {
		search.Topics = []string{p.Topic}
	}
	ctx, cancel := context.WithTimeout(c.ctx, findFor)
	defer cancel()
	found, err := d.admin.Find(ctx, search)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && c.ctx.Err() == nil && found.Next != "" {
		err = nil // p.Said tells that it was stopped
	}
	if err != nil {
		return nil, err
	}
	p.Asked, p.Said = true, found.Explain()
	for _, m := range found.Messages {
		row := foundRow{messageRow: d.messageRow(m, p.Contents)}
		for _, place := range m.Places {
			row.At = append(row.At, foundPlace{place, stateWords(place.State)})
		}
		p.Rows = append(p.Rows, row)
	}
	for _, e := range found.Past {
		p.Past = append(p.Past, endedRow{e, endedBy(e)})
	}
	if found.Next != "" {
		p.Next = d.address("/find", "q", p.Text, "by", p.By, "t", p.Topic, "cursor", found.Next)
	}
	return v, nil
}

// seen returns what a user may know of a message. A search and a filter judge by that, because
// whether they find a message must not tell what is hidden.
func (d *Dashboard) seen(m admin.Message, contents bool) admin.Message {
	metadata, payload := m.Metadata, m.Payload
	m.Metadata, m.Payload = nil, nil
	if !contents {
		return m
	}
	m.Metadata = make(map[string]string, len(metadata))
	for key, value := range metadata {
		if d.names.hide(key) {
			continue
		}
		if text, hidden := d.names.text(value, shownValue); !hidden || text != hiddenText {
			m.Metadata[key] = string(unmarked([]byte(text), hidden))
		}
	}
	m.Payload = d.names.searchable(payload)
	return m
}

// shownValue is how many bytes of a value of metadata are shown.
const shownValue = 8 << 10

// searchable returns what is shown of a payload: as text, and if something is hidden, as JSON too.
func (h hiddenNames) searchable(payload []byte) []byte {
	begin := payload[:min(len(payload), shown)]
	cut := len(begin) < len(payload)
	r := h.redact(begin, cut, shown)
	switch {
	case r.whole != "":
		return nil
	case r.json && (r.hidden || cut):
		return unmarked(append(append(bytes.Clone(r.compact), '\n'), r.pretty...), r.hidden)
	}
	return begin
}

// unmarked replaces what stands for hidden values by a byte that no text has. Else a search for the
// mark would tell whether a hidden value is that text.
func unmarked(text []byte, hidden bool) []byte {
	if hidden {
		text = bytes.ReplaceAll(text, []byte(hiddenText), []byte{0})
	}
	return text
}
