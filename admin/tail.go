package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

const (
	tailEvery  = 100 * time.Millisecond // between two looks of Tail
	tailAhead  = time.Second            // messages are read so long before they are due
	tailBehind = time.Second            // a message that comes into a key so late is still found
	tailKnown  = 100_000                // entries that Tail remembers, so that it shows each once
)

// TailOptions are what Tail does besides. The zero value is nothing.
type TailOptions struct {
	// Began, if not nil, is called after the first look. What becomes due from then on is shown.
	Began func()
}

// Tailed is how complete a Tail was.
type Tailed struct {
	// Shown is how many messages were shown.
	Shown int `json:"shown"`

	// Unseen is about how many more messages became due. They were published for now, and done with
	// before the next look. Messages that were cancelled or deleted meanwhile count, too. Retries
	// that were shown are taken off.
	Unseen int `json:"unseen"`
}

// Tail calls show with each message that becomes due from now on, in order of due time, until ctx
// ends, which is no error, or show returns false. The only Place of a message has no state, and the
// time at which the message is due. A retry is shown again.
//
// Tail only reads. It has no group, takes no message, and leaves nothing in Redis. It looks about
// ten times a second, and waits for show. A message with a longer delay is read a second before it
// is due. So it is shown whatever becomes of it, unless two looks are further apart than that. A
// message without a delay is shown if it is still there at the next look, and otherwise counts as
// Tailed.Unseen. A look reads at most 1,000 messages of each state, and the messages of at most 100
// groups. Messages without a delay that go to a Redis Stream at once are not seen.
func (a *Admin) Tail(ctx context.Context, topic string, show func(Message) bool, o TailOptions) (Tailed, error) {
	var told Tailed
	tails, err := a.tails(ctx, topic)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return told.with(tails), nil
		case <-timer.C:
		}
		var due []Message
		if due, err = a.tailed(ctx, topic, tails); err != nil {
			break
		}
		if o.Began != nil {
			o.Began()
			o.Began = nil
		}
		for _, m := range due {
			told.Shown++
			if !show(m) {
				return told.with(tails), nil
			}
		}
		timer.Reset(tailEvery)
	}
	if ctx.Err() != nil {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("tail: %w", err)
	}
	return told.with(tails), err
}

// tails returns the tails of a topic: one, or that of each partition.
func (a *Admin) tails(ctx context.Context, topic string) (all []*tail, err error) {
	names := []string{topic}
	t, err := a.topic(ctx, topic, rights.Tailing)
	if err == nil {
		err = t.Require(ctx, "")
	}
	if errors.Is(err, ErrNotFound) {
		parts, failed := a.parts(ctx, topic)
		if failed != nil && !errors.Is(failed, ErrForbidden) {
			err = failed
		}
		if len(parts) > 0 {
			names, err = parts, nil
		}
	}
	for _, name := range names {
		if err != nil {
			return nil, err
		}
		if t, err = a.topic(ctx, name, rights.Tailing); err == nil {
			all = append(all, &tail{topic: t, coming: map[string]operate.Passed{}, known: map[string]bool{}})
		}
	}
	return all, err
}

// tailed returns what a look at each partition shows. A partition may not exist yet.
func (a *Admin) tailed(ctx context.Context, topic string, tails []*tail) (due []Message, err error) {
	var missing error
	var now time.Time
	for _, t := range tails {
		passed, err := t.look(ctx)
		if errors.Is(err, ErrNotFound) {
			missing = err
			continue
		}
		if err != nil {
			return nil, err
		}
		now = t.last.Now
		for _, p := range passed {
			m := a.message(topic, t.topic.Name, p.Stored)
			m.Places = []Place{{At: p.Due}}
			due = append(due, m)
		}
	}
	if now.IsZero() {
		return nil, missing
	}
	for _, t := range tails {
		if t.first.Now.IsZero() {
			t.first.Now = now // all that it gets from now on is new
		}
	}
	slices.SortStableFunc(due, func(x, y Message) int { return x.Places[0].At.Compare(y.Places[0].At) })
	return due, nil
}

// with adds what was unseen.
func (t Tailed) with(tails []*tail) Tailed {
	for _, one := range tails {
		t.Unseen += one.unseen()
	}
	return t
}

// tail is a Tail of a plain topic. Its entries are "id:due".
type tail struct {
	topic *operate.Topic
	first operate.Passing // the first look
	last  operate.Passing // the last one

	coming map[string]operate.Passed // messages that are not due yet
	known  map[string]bool           // entries that were shown
	order  []string                  // known, the oldest first
	shown  int                       // entries that were shown
}

// look returns the messages that have become due since the last look.
func (t *tail) look(ctx context.Context) ([]operate.Passed, error) {
	since := t.first.Now
	if !since.IsZero() && since.Before(t.last.Now.Add(-tailBehind)) {
		since = t.last.Now.Add(-tailBehind)
	}
	has := []string{}
	for entry := range t.coming {
		has = append(has, entry)
	}
	for _, entry := range slices.Backward(t.order) {
		_, due, _ := strings.Cut(entry, ":")
		if queue.Instant(due).Before(since) {
			break
		}
		has = append(has, entry)
	}
	seen, err := t.topic.Passing(ctx, since, tailAhead, has)
	if err != nil {
		return nil, err
	}
	return t.take(seen), nil
}

// take returns what a look shows: what is there and due, and what was to become due by now. The
// latter was handled since the last look. It counts as cancelled, and is not shown, if it was gone
// before its due time.
func (t *tail) take(seen operate.Passing) (due []operate.Passed) {
	there := make(map[string]bool, len(seen.Messages))
	for _, m := range seen.Messages {
		there[m.Entry] = true
		if _, known := t.coming[m.Entry]; !known && !t.known[m.Entry] {
			t.coming[m.Entry] = m
		}
	}
	for entry, m := range t.coming {
		switch {
		case !m.Due.After(seen.Now):
			due = append(due, m)
			delete(t.coming, entry)
		case !there[entry]:
			delete(t.coming, entry)
		}
	}
	slices.SortFunc(due, func(a, b operate.Passed) int {
		if c := a.Due.Compare(b.Due); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	if t.first.Now.IsZero() {
		t.first = seen
		for _, m := range due {
			t.remember(m)
		}
		due = nil // they are from before
	}
	for _, m := range due {
		t.remember(m)
		t.shown++
	}
	t.last = seen
	return due
}

func (t *tail) remember(m operate.Passed) {
	t.known[m.Entry] = true
	t.order = append(t.order, m.Entry)
	if len(t.order) > tailKnown {
		for _, entry := range t.order[:tailKnown/2] {
			delete(t.known, entry)
		}
		t.order = slices.Clone(t.order[tailKnown/2:])
	}
}

// unseen is how many messages came to be due, or never were there, beyond those that were shown.
func (t *tail) unseen() int {
	published := t.last.Published - t.first.Published - (t.last.Replaced - t.first.Replaced)
	return max(0, published-(t.last.Waiting-t.first.Waiting)-t.shown)
}
