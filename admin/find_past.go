package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// SearchedHistories is what a search read of the histories of groups.
type SearchedHistories struct {
	// Asked is true if the Filter names messages as a line of a history does. A search that goes on
	// from a Cursor does not ask again.
	Asked bool `json:"asked"`

	// Lines is how many lines were read. Keeping is how many groups keep a history, and Without is
	// how many keep none.
	Lines   int `json:"lines"`
	Keeping int `json:"keeping"`
	Without int `json:"without"`

	// LeftOut says what was not read, and why; "" if all was.
	LeftOut string `json:"left_out,omitempty"`
}

// explain says in sentences where a search looked for messages that ended.
func (h SearchedHistories) explain(nothing bool) (sentences []string) {
	switch {
	case !h.Asked && nothing:
		return []string{"Histories were not read: they have no metadata and no payloads."}
	case !h.Asked:
		return nil
	case h.Keeping+h.Lines > 0:
		sentence := "Looked up the name in " + texts.Many(h.Lines, "line") + " of histories."
		if nothing && h.Without > 0 {
			sentence += fmt.Sprintf(" Of the groups, %s keep none.", texts.Number(h.Without))
		}
		sentences = []string{sentence}
	case nothing:
		sentences = []string{"No group keeps a history of messages that ended; turn it on: redisdelay groups history TOPIC GROUP --keep 24h"}
	}
	if h.LeftOut != "" {
		sentences = append(sentences, "Left out of the histories: "+h.LeftOut+".")
	}
	return sentences
}

// namesEnded tells whether the filter chooses messages only by what a line of a history has.
func (f Filter) namesEnded() bool {
	named := f.IDs != nil || f.UUID != "" || f.DelayID != "" || f.Any != ""
	f.IDs, f.UUID, f.DelayID, f.Any = nil, "", "", ""
	return named && f.isZero()
}

// choosesEnded tells whether the filter, of which namesEnded is true, chooses a line. Any must be
// the whole ID, UUID or delay ID.
func (f Filter) choosesEnded(e queue.Ended) bool {
	return (f.IDs == nil || f.IDs[e.ID]) && (f.UUID == "" || f.UUID == e.UUID) && (f.DelayID == "" || f.DelayID == e.DelayID) &&
		(f.Any == "" || f.Any == e.ID || f.Any == e.UUID || f.Any == e.DelayID)
}

// recall looks for messages that ended in the histories of all groups. It reads at most Most lines,
// topic by topic, and newest first in each. If the messages of IDs were found, it looks only in
// their topics.
func (f *finder) recall(ctx context.Context) error {
	h := &f.found.Histories
	if h.Asked = f.Filter.namesEnded(); !h.Asked {
		return nil
	}
	exact := f.found.Ended == SearchExact && len(f.found.Messages) > 0
	keeping, without := map[string]bool{}, map[string]bool{} // by topic and group
	for i, t := range f.topics {
		if t == nil || exact && !slices.ContainsFunc(f.found.Messages, func(m Message) bool { return m.Topic == t.Name }) {
			continue
		}
		streams := []*endings{{topic: t, name: t.Name + "/"}}
		for _, group := range slices.Sorted(maps.Keys(f.keeps[i])) {
			name, kept := groupOfAll(t.Name, group), f.keeps[i][group]
			switch {
			case kept.History != (History{}):
				keeping[name] = true
			case kept.Set: // an operator turned it off, so lines may be there for a while
				without[name] = true
			default:
				without[name] = true
				continue
			}
			streams = append(streams, &endings{topic: t, group: group, name: t.Name + "/" + group})
		}
		if len(streams) == 1 {
			continue // lines of messages that no group had are there for the groups that keep some
		}
		if err := f.recallOf(ctx, t, streams); err != nil {
			if ctx.Err() != nil || servers.Unreachable(err) && !f.admin.client.Cluster() {
				f.found.Next = searchCursor{Topic: f.found.Topics[0].Topic}.String()
				return err
			}
			h.LeftOut = fmt.Sprintf("topic %q: %v", t.Name, err)
		}
	}
	for name := range keeping {
		delete(without, name)
	}
	h.Keeping, h.Without = len(keeping), len(without)
	return nil
}

// groupOfAll names a group of a topic, or of all partitions of one.
func groupOfAll(plain, group string) string {
	if topic, _, ok := partitions.Parse(plain); ok {
		plain = topic
	}
	return plain + "\x00" + group
}

// recallOf reads the histories of a plain topic.
func (f *finder) recallOf(ctx context.Context, t *operate.Topic, streams []*endings) error {
	if _, err := f.admin.permits.Try(ctx, t.Topic, rights.Recalling); err != nil {
		return err
	}
	h := &f.found.Histories
	for {
		s, _, err := newest(ctx, streams, historyStep)
		if err != nil || s == nil {
			return err
		}
		switch {
		case len(f.found.Past) == f.Limit:
			h.LeftOut = "older lines: enough messages were found before"
			return nil
		case h.Lines == f.Most:
			h.LeftOut = "older lines: as many as asked for were read before"
			return nil
		}
		h.Lines++
		if line := s.take(); f.Filter.choosesEnded(line) {
			f.found.Past = append(f.found.Past, s.ended("", line)) // which names the plain topic
		}
	}
}
