package dashboard

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

const (
	messagesOfPage = 50
	// examined is how many messages a filter examines in one step, and filterSteps how many steps a
	// page may take until there is something to show.
	examined    = 1000
	filterSteps = 30
)

// messagesPage is a page of the messages of one state.
type messagesPage struct {
	asked
	Topic, Group         string
	Groups               []string
	Rows                 []messageRow
	Next                 string // address of the next page
	First, Contents, All bool
	Count                int
}

// asked is what messages a request is about, apart from topic and group.
type asked struct {
	State                 admin.State
	UUID, DelayID, Reason string
	Key, Value            string
	Filtered              bool // some of these choose
	filter                admin.Filter
}

// askedOf returns what messages a request is about. The filter chooses by what the user may see.
func (d *Dashboard) askedOf(c *call) (asked, error) {
	a := asked{State: admin.State(c.q("state")), UUID: strings.TrimSpace(c.q("uuid")), DelayID: c.q("delay-id"), Reason: c.q("reason"), Key: c.q("key"), Value: c.q("value")}
	if a.State == "" {
		a.State = admin.Waiting
	}
	if !slices.ContainsFunc(states, func(s stateText) bool { return s.State == a.State }) {
		return a, bad(fmt.Sprintf("There is no state %q.", texts.Clip(string(a.State), 40)))
	}
	may := admin.Filter{UUID: a.UUID, DelayID: a.DelayID, Reason: a.Reason}
	if a.Key != "" {
		if !c.user.Contents || d.names.hide(a.Key) {
			return a, &refusal{http.StatusForbidden, "You may not look for this metadata, because you may not see it."}
		}
		may.Metadata = map[string]string{a.Key: a.Value}
	}
	if a.Filtered = a.UUID != "" || a.DelayID != "" || a.Reason != "" || a.Key != ""; a.Filtered {
		contents := c.user.Contents
		a.filter = may
		a.filter.Match = func(m admin.Message) bool { return may.Matches(d.seen(m, contents)) }
	}
	return a, nil
}

// String returns the filter in words, "" without one.
func (a asked) String() string {
	var all []string
	for _, one := range []struct{ format, value string }{{"UUID %s", a.UUID}, {"delay ID %q", a.DelayID}, {"reason contains %q", a.Reason}, {"metadata " + strings.ReplaceAll(a.Key, "%", "%%") + "=%s", a.Value}} {
		if one.value != "" {
			all = append(all, fmt.Sprintf(one.format, one.value))
		}
	}
	return strings.Join(all, ", ")
}

// Works are the operations on messages that wait or retry.
func (p messagesPage) Works() []work {
	if p.State != admin.Waiting && p.State != admin.Retrying {
		return nil
	}
	return worksOn(admin.Waiting)
}

// messageRow is a message in a list.
type messageRow struct {
	admin.Message
	admin.Place
	Metadata []pair
	More     int // pairs that are not in Metadata
	Preview  string
}

// stateText is a state of messages, with its word and the heading of its time.
type stateText struct {
	State       admin.State
	Words, Time string
}

// states are the states of messages.
var states = []stateText{
	{admin.Waiting, "Waiting", "Due"}, {admin.Ready, "Ready", "Due"}, {admin.InHand, "In hand", "Lease ends"},
	{admin.Retrying, "Retrying", "Due"}, {admin.Dead, "Dead", "Died"},
}

// stateWords returns a state in words.
func stateWords(s admin.State) string {
	for _, known := range states {
		if known.State == s {
			return known.Words
		}
	}
	words := texts.State(string(s))
	return strings.ToUpper(words[:1]) + words[1:]
}

// Words returns the state in words.
func (p messagesPage) Words() string { return stateWords(p.State) }

// TimeOf is the heading of the times.
func (p messagesPage) TimeOf() string {
	for _, known := range states {
		if known.State == p.State {
			return known.Time
		}
	}
	return "Time"
}

// States are the states, for the template.
func (messagesPage) States() (all []admin.State) {
	for _, s := range states {
		all = append(all, s.State)
	}
	return all
}

func (d *Dashboard) messages(c *call) (*view, error) {
	asked, err := d.askedOf(c)
	if err != nil {
		return nil, err
	}
	p := &messagesPage{Topic: c.q("t"), Group: c.q("g"), asked: asked, Contents: c.user.Contents, First: c.q("cursor") == ""}
	stats, err := d.read(c.ctx, p.Topic)
	if err != nil {
		return nil, err
	}
	for _, g := range stats.Groups {
		p.Groups = append(p.Groups, g.Group)
	}
	if p.Group == "" && len(p.Groups) > 0 {
		p.Group = p.Groups[0]
	}
	p.Count = countOf(stats, p.Group, p.State)
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	v := &view{Title: p.Words(), Crumbs: crumbs, Now: d.sweep.now(), Data: p}
	if p.Group == "" && p.State != admin.Waiting {
		return v, nil // nobody has subscribed yet
	}
	query := admin.Query{State: p.State, Group: p.Group, Filter: p.filter, Cursor: c.q("cursor"), Limit: messagesOfPage}
	if p.Filtered {
		query.Limit = examined
	}
	for step := 0; len(p.Rows) == 0 && step < filterSteps; step++ { // a page of a filter may be empty
		page, err := d.admin.List(c.ctx, p.Topic, query)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			p.Rows = append(p.Rows, d.messageRow(m, p.Contents))
		}
		if query.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	if query.Cursor != "" { // the page is full, and may be the last
		rest, err := d.admin.List(c.ctx, p.Topic, admin.Query{State: p.State, Group: p.Group, Cursor: query.Cursor, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(rest.Messages) == 0 && rest.Next == "" {
			query.Cursor = ""
		}
	}
	if query.Cursor != "" {
		p.Next = d.address("/messages", "t", p.Topic, "g", p.Group, "state", string(p.State), "uuid", p.UUID, "delay-id", p.DelayID,
			"reason", p.Reason, "key", p.Key, "value", p.Value, "cursor", query.Cursor)
	}
	return v, nil
}

// countOf returns how many messages are in a state.
func countOf(s admin.Stats, group string, state admin.State) int {
	if state == admin.Waiting {
		return s.Waiting
	}
	for _, g := range s.Groups {
		if g.Group == group {
			return map[admin.State]int{admin.Ready: g.Ready, admin.InHand: g.InHand, admin.Retrying: g.Retrying, admin.Dead: g.Dead}[state]
		}
	}
	return 0
}

// previewed is how many characters of a payload a list shows.
const previewed = 120

// messageRow returns what a list shows of a message.
func (d *Dashboard) messageRow(m admin.Message, contents bool) messageRow {
	row := messageRow{Message: m, Place: m.Places[0]}
	if contents {
		row.Metadata = d.metadata(m.Metadata, previewed)
		if more := len(row.Metadata) - 3; more > 0 {
			row.Metadata, row.More = row.Metadata[:3], more
		}
		if row.Preview = d.names.preview(m.Payload, previewed); row.Preview == "" && len(m.Payload) > 0 {
			row.Preview = texts.Many(len(m.Payload), "byte")
		}
	}
	return row
}

// WordsOf returns another state in words.
func (messagesPage) WordsOf(s admin.State) string { return stateWords(s) }
