package queue_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// The model knows which messages have ended, and how. Each has one line in a history.

// histories are those of the groups in the model test. Group "c" keeps none.
var histories = map[string]queue.History{
	"a":     {For: 300 * 24 * time.Hour, Max: 1000},
	"b":     {For: 200 * 24 * time.Hour, Max: 2},
	inTurns: {For: 100 * 24 * time.Hour, Max: 1000},
}

// slack is how many lines more than its bound a history may have, because Redis removes about a
// hundred at a time.
const slack = 100

// bounds returns what a claim tells of the history of a group.
func bounds(group string) string {
	h := histories[group]
	if h.Max == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", h.For.Milliseconds(), h.Max)
}

// remember has the handle of a subscription settle as one that knows of the group's history.
func (s *sub) remember() { s.group.Group = s.group.Keeping(bounds(s.group.Name)) }

// ends has the messages that the next steps end, end like that.
func (m *model) ends(how string) { m.how = func(string) string { return how } }

// note adds what ended from one picture to the next to the histories.
func (m *model) note(before, after *picture) {
	left := after.ids()
	for id := range before.Waiting {
		if !left[id] {
			m.line("", id)
		}
	}
	for name, g := range before.Groups {
		if after.Groups[name] == nil {
			delete(m.ended, name) // its history goes with it
			continue
		}
		has := after.Groups[name].ids()
		for id := range g.ids() {
			if !has[id] {
				m.line(name, id)
			}
		}
	}
}

// line adds a line to the history of a group, "" for the topic's own.
func (m *model) line(group, id string) {
	require.NotNil(m.t, m.how, "%s ends by no operation that ends messages", m.name[id])
	if m.bound(group) > 0 {
		m.ended[group] = append(m.ended[group], m.name[id]+" "+m.how(id))
	}
}

// bound is how many lines a history keeps, 0 for none. That of the topic keeps as many as the
// longest of its groups.
func (m *model) bound(group string) (most int) {
	if group != "" {
		return histories[group].Max
	}
	for g := range m.groups {
		most = max(most, histories[g].Max)
	}
	return most
}

// checkHistories compares all histories with what has ended.
func (m *model) checkHistories() {
	m.t.Helper()
	for _, group := range []string{"", "a", "b", "c", inTurns} {
		want, got := m.ended[group], m.world.ended(group)
		most := histories[group].Max
		if group == "" {
			most = 2 // groups with larger ones may have come and gone
		}
		if len(want) <= most || group == "" && len(got) == len(want) {
			require.ElementsMatch(m.t, want, got, "the history of group %q", group)
			continue
		}
		require.GreaterOrEqual(m.t, len(got), most, "the history of group %q", group)
		if group != "" {
			require.LessOrEqual(m.t, len(got), most+slack, "the history of group %q", group)
		}
		want = slices.Clone(want)
		for _, line := range got {
			i := slices.Index(want, line)
			require.GreaterOrEqual(m.t, i, 0, "the history of group %q has %q, and not once", group, line)
			want = slices.Delete(want, i, i+1)
		}
	}
}
