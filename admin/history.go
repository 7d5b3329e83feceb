package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// History is for how long, and of how many messages, a group keeps a line about each one that
// ended. The fields are those of redisdelay.SubscriberConfig. The zero value is no history.
type History struct {
	// Retention is from 1s to 366 days. 0: no history.
	Retention time.Duration `json:"retention"`

	// Max is of each partition, at most a million, give or take a hundred. 0: 10,000. Only with
	// Retention.
	Max int `json:"max"`
}

// String returns the history in a few words, such as "24h0m0s, 10,000 messages".
func (h History) String() string {
	if h == (History{}) {
		return "no history"
	}
	return fmt.Sprintf("%v, %s messages", h.Retention, texts.Number(h.Max))
}

// GroupHistory is the history of a group, and who decided on it. The zero value is no history.
type GroupHistory struct {
	History // that applies

	// Set is true if SetHistory has set it, and false if it is what the last subscriber asked for.
	// Asked is what that asked for.
	Set   bool    `json:"set"`
	Asked History `json:"asked"`
}

// String returns the history in a few words, and who decided on it if that was an operator.
func (h GroupHistory) String() string {
	if h.Set {
		return h.History.String() + ", set by an operator"
	}
	return h.History.String()
}

// add adds the history of the group in another partition.
func (h *GroupHistory) add(part GroupHistory) {
	h.Retention, h.Max = max(h.Retention, part.Retention), max(h.Max, part.Max)
	h.Asked.Retention, h.Asked.Max = max(h.Asked.Retention, part.Asked.Retention), max(h.Asked.Max, part.Asked.Max)
	h.Set = h.Set || part.Set
}

func historyOf(o queue.GroupOptions) GroupHistory {
	return GroupHistory{History: historyFrom(o.KeptHistory()), Set: o.SetHistory != nil, Asked: historyFrom(o.History)}
}

func historyFrom(h queue.History) History { return History{Retention: h.For, Max: h.Max} }

// HistoryChange is what SetHistory or ResetHistory did.
type HistoryChange struct {
	Group  string       `json:"group"`
	Before GroupHistory `json:"before"`
	After  GroupHistory `json:"after"`
}

// SetHistory has a group keep a line about each message that ends from now on, for all its
// subscribers. It replaces what they ask for, also when they start again later, until ResetHistory.
// A History of zero keeps none. Subscribers know of it with their next claim.
//
// The first history of a topic marks its layout: programs of a version without histories then
// refuse the topic with ErrLayout. The mark stays without a history, too. The Redis users of
// publishers, subscribers, schedulers and operators need the commands of a history: see
// docs/operations.md. Without them nothing else fails, and HistoryFailed counts the lines.
//
// Errors wrap ErrInvalidArgument for a wrong History, ErrNotFound, or ErrTopicMode for the group of
// a Redis Stream.
func (a *Admin) SetHistory(ctx context.Context, topic, group string, history History) (HistoryChange, error) {
	h := queue.History{For: history.Retention, Max: history.Max}.WithDefaults()
	var err error
	if fault := h.CheckFor(); fault != nil {
		err = fmt.Errorf("%w: Retention %w", ErrInvalidArgument, fault)
	}
	if fault := h.CheckMax(); fault != nil {
		err = errors.Join(err, fmt.Errorf("%w: Max %w", ErrInvalidArgument, fault))
	}
	change := HistoryChange{}
	if err == nil {
		change, err = a.setHistory(ctx, topic, groupName(group), &h)
	}
	if err != nil {
		return HistoryChange{}, fmt.Errorf("set the history of group %q of topic %q: %w", groupName(group), topic, err)
	}
	return change, nil
}

// ResetHistory ends what SetHistory has set: what the last subscriber of the group asked for
// applies again. Errors wrap ErrNotFound, or ErrTopicMode for the group of a Redis Stream.
func (a *Admin) ResetHistory(ctx context.Context, topic, group string) (HistoryChange, error) {
	change, err := a.setHistory(ctx, topic, groupName(group), nil)
	if err != nil {
		return HistoryChange{}, fmt.Errorf("reset the history of group %q of topic %q: %w", groupName(group), topic, err)
	}
	return change, nil
}

func (a *Admin) setHistory(ctx context.Context, topic, group string, history *queue.History) (HistoryChange, error) {
	change, err := over(ctx, a, topic, func(plain string) (*HistoryChange, error) {
		t, err := a.topic(ctx, plain, rights.Assigning)
		if err != nil {
			return nil, err
		}
		before, after, err := t.SetHistory(ctx, group, history)
		if err != nil {
			return nil, err
		}
		return &HistoryChange{Group: group, Before: historyOf(before), After: historyOf(after)}, nil
	}, func(sum **HistoryChange, part *HistoryChange) {
		switch {
		case *sum == nil:
			*sum = part
		case part != nil:
			(*sum).Before.add(part.Before)
			(*sum).After.add(part.After)
		}
	})
	if err != nil {
		return HistoryChange{}, err
	}
	return *change, nil
}

// Ended is a line of a history: a message that ended. Zero times are not known, or there was no
// delivery.
type Ended struct {
	// Topic is the plain topic that had the message, if the topic is partitioned or the line is of
	// Find. Group is "" if the message ended before any group had it.
	Topic string `json:"topic,omitempty"`
	Group string `json:"group,omitempty"`

	// How is "acked", "dropped" (too late, or expired), "cancelled", "replaced" (by a message with
	// the same delay ID), "deleted" (a dead letter, by an operator), "purged" (a dead letter, by
	// retention or MaxDead) or "moved" (a dead letter, to another topic).
	How string    `json:"how"`
	At  time.Time `json:"at"`

	// UUID is "" if nobody knew it: a script ended the message, and its Marshaler is none of this
	// project, or the body was very large.
	ID      string `json:"id"`
	UUID    string `json:"uuid,omitempty"`
	DelayID string `json:"delay_id,omitempty"`

	// DueAt is when the message was due at first, also if it was retried later. It is zero if its
	// first delivery was before the group had a history. FirstDelivery and LastDelivery are when
	// a subscriber took the message in hand: it may have waited there for its handler.
	DueAt         time.Time `json:"due_at"`
	FirstDelivery time.Time `json:"first_delivery"`
	LastDelivery  time.Time `json:"last_delivery"`

	// Deliveries is how many counted, with the last one. After a requeue they count from zero.
	Deliveries int `json:"deliveries"`

	// Host and PID are of the process that acked or dropped it. ReplacedBy is the ID of the message
	// that replaced it.
	Host       string `json:"host,omitempty"`
	PID        int    `json:"pid,omitempty"`
	ReplacedBy string `json:"replaced_by,omitempty"`
}

// Took is how long the last delivery took until the message was acked, 0 without one. It counts
// from when the subscriber took the message in hand, so a wait for the handler is in it.
func (e Ended) Took() time.Duration {
	if e.LastDelivery.IsZero() || e.How != "acked" {
		return 0
	}
	return max(e.At.Sub(e.LastDelivery), 0)
}

// String says what became of the message, such as "acked 2026-11-27T14:03:00Z by worker-7 (pid 12)
// after 2 deliveries".
func (e Ended) String() string {
	text := e.How + " " + e.At.UTC().Format(time.RFC3339)
	if e.Host != "" {
		text += fmt.Sprintf(" by %s (pid %d)", e.Host, e.PID)
	}
	if e.ReplacedBy != "" {
		text += " by message " + e.ReplacedBy
	}
	switch {
	case e.Deliveries == 1:
		text += " after 1 delivery"
	case e.Deliveries > 1:
		text += fmt.Sprintf(" after %d deliveries", e.Deliveries)
	}
	return text
}

// HistoryFilter says which lines History returns. The zero value is all.
type HistoryFilter struct {
	Group             string // "": of all groups, and of messages that ended before a group had them
	ID, UUID, DelayID string
	Name              string    // any of these three; "" means any line
	From, To          time.Time // when they ended: From is the first instant, To the first one after

	Limit  int    // lines in a page at most; default 100, at most 1,000
	Cursor string // of the page before; "" is the first page
}

func (f HistoryFilter) fits(e queue.Ended) bool {
	return (f.ID == "" || f.ID == e.ID) && (f.UUID == "" || f.UUID == e.UUID) && (f.DelayID == "" || f.DelayID == e.DelayID) &&
		(f.Name == "" || f.Name == e.ID || f.Name == e.UUID || f.Name == e.DelayID)
}

// HistoryPage is a page of History.
type HistoryPage struct {
	Ended []Ended `json:"ended"`

	// Looked is how many lines were read; the next page may read some of them again. Next is the
	// Cursor of the next page; "" if there is none. A page may have fewer lines than Limit, and a
	// Next.
	Looked int    `json:"looked"`
	Next   string `json:"next,omitempty"`
}

// Steps of History: lines that one call reads at most, and about how many a page reads.
const (
	historyStep  = 1000
	historyReach = 50_000
)

// step returns how many lines a call reads of each of some histories. Without a name each line that
// is read is in the page or tells that there are more.
func (f HistoryFilter) step(limit, histories int) int {
	if f.ID == "" && f.UUID == "" && f.DelayID == "" && f.Name == "" {
		return min(limit+1, historyStep)
	}
	return max(min(historyReach/2/max(histories, 1), historyStep), 10)
}

// History returns messages that ended, the newest first, of groups that keep a history. A group
// keeps lines only from when it has the setting on, and for as long as it says. A page with a name
// in its filter reads about 50,000 lines. Errors wrap ErrNotFound if there is no such topic, or
// ErrInvalidArgument for a wrong Cursor.
func (a *Admin) History(ctx context.Context, topic string, filter HistoryFilter) (page HistoryPage, err error) {
	from, err := readHistoryCursor(filter.Cursor)
	var streams []*endings
	if err == nil {
		streams, err = a.endings(ctx, topic, filter, from)
	}
	limit := min(cmp.Or(max(filter.Limit, 0), 100), 1000)
	step := filter.step(limit, len(streams))
	for merged := 0; err == nil; merged++ {
		var next *endings
		var read int
		next, read, err = newest(ctx, streams, step)
		if page.Looked += read; next == nil {
			break
		}
		if len(page.Ended) == limit || merged > 0 && page.Looked >= historyReach {
			page.Next = from.String()
			break
		}
		line := next.take()
		from = historyCursor{entry: line.Entry, stream: next.name}
		if filter.fits(line) {
			page.Ended = append(page.Ended, next.ended(topic, line))
		}
	}
	if err != nil {
		return HistoryPage{}, fmt.Errorf("history of topic %q: %w", topic, err)
	}
	return page, nil
}

// historyCursor is the last line that was read. Lines are in order of their time, then of the names
// of their streams.
type historyCursor struct{ entry, stream string }

func (c historyCursor) String() string { return c.entry + "@" + c.stream }

func readHistoryCursor(text string) (c historyCursor, err error) {
	if text == "" {
		return c, nil
	}
	entry, stream, ok := strings.Cut(text, "@")
	if !ok || !isActCursor(entry) {
		return c, fmt.Errorf("%w: %q is not a cursor of History", ErrInvalidArgument, text)
	}
	return historyCursor{entry, stream}, nil
}

// endings reads the history of one group in one plain topic, newest first.
type endings struct {
	topic  *operate.Topic
	group  string
	name   string // of the stream in a cursor
	next   string // the entry before which to read on
	after  string // the first entry that counts; "": any
	lines  []queue.Ended
	nobody bool // there are no more
}

// endings returns the histories of all that the filter names.
func (a *Admin) endings(ctx context.Context, topic string, f HistoryFilter, from historyCursor) (all []*endings, err error) {
	_, err = over(ctx, a, topic, func(plain string) (bool, error) {
		t, err := a.topic(ctx, plain, rights.Recalling)
		if err != nil {
			return false, err
		}
		groups, err := t.Existing(ctx)
		if err != nil {
			return false, err
		}
		for _, group := range append([]string{""}, groups.Names...) {
			if f.Group != "" && group != f.Group {
				continue
			}
			s := &endings{topic: t, group: group, name: plain + "/" + group}
			if !f.From.IsZero() {
				s.after = queue.EntryAt(f.From)
			}
			if !f.To.IsZero() {
				s.next = queue.EntryAt(f.To) + "-0"
			}
			if from.entry != "" {
				s.next = s.behind(from)
			}
			all = append(all, s)
		}
		return true, nil
	}, func(*bool, bool) {})
	slices.SortFunc(all, func(a, b *endings) int { return cmp.Compare(a.name, b.name) })
	return all, err
}

// behind returns the entry before which the stream goes on after a cursor.
func (s *endings) behind(c historyCursor) string {
	ms := milliseconds(c.entry)
	switch {
	case s.name == c.stream:
		return c.entry
	case s.name < c.stream: // all of that millisecond came before
		return strconv.FormatUint(ms, 10) + "-0"
	}
	return strconv.FormatUint(ms+1, 10) + "-0"
}

// milliseconds returns the time of an entry.
func milliseconds(entry string) uint64 {
	text, _, _ := strings.Cut(entry, "-")
	ms, _ := strconv.ParseUint(text, 10, 64)
	return ms
}

// before tells whether the next line of a stream comes before that of another one, whose name is
// not less.
func (s *endings) before(other *endings) bool {
	return milliseconds(s.lines[0].Entry) > milliseconds(other.lines[0].Entry)
}

// newest returns the stream whose next line is the newest, or nil if no line is left, and how many
// lines it read. Streams are in order of their names.
func newest(ctx context.Context, streams []*endings, step int) (next *endings, read int, err error) {
	for _, s := range streams {
		n, err := s.fill(ctx, step)
		if read += n; err != nil {
			return nil, read, err
		}
		if len(s.lines) > 0 && (next == nil || s.before(next)) {
			next = s
		}
	}
	return next, read, nil
}

// take returns the next line, which is there.
func (s *endings) take() queue.Ended {
	line := s.lines[0]
	s.lines = s.lines[1:]
	return line
}

// fill reads on if no line is left, and returns how many lines it read.
func (s *endings) fill(ctx context.Context, step int) (read int, err error) {
	if len(s.lines) > 0 || s.nobody {
		return 0, nil
	}
	lines, err := s.topic.EndedBefore(ctx, s.group, s.next, s.after, step)
	if err != nil {
		return 0, err
	}
	s.lines, s.nobody = lines, len(lines) < step
	if len(lines) > 0 {
		s.next = lines[len(lines)-1].Entry
	}
	return len(lines), nil
}

// ended returns a line as operators see it.
func (s *endings) ended(topic string, e queue.Ended) Ended {
	line := Ended{
		Group: s.group, How: e.How, At: e.At, ID: e.ID, UUID: e.UUID, DelayID: e.DelayID,
		DueAt: e.Due, FirstDelivery: e.First, LastDelivery: e.Last, Deliveries: e.Deliveries,
		Host: e.Host, PID: e.PID, ReplacedBy: e.By,
	}
	if s.topic.Name != topic {
		line.Topic = s.topic.Name
	}
	return line
}
