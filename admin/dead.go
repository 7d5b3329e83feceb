package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

var (
	errNoBody    = errors.New("the body is gone from Redis")
	errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")
)

// Requeue makes a dead letter of a group ready again. Its deliveries are counted from zero, and its
// expiry no longer applies. Delivery.Redelivered is true for the next delivery.
func (a *Admin) Requeue(ctx context.Context, topic string, message GroupMessage) error {
	return a.one(ctx, topic, message, "requeue", rights.Requeueing, func(g *operate.Group) (int, error) { return g.Requeue(ctx, []string{message.ID}) })
}

// DeleteDead deletes a dead letter of a group.
func (a *Admin) DeleteDead(ctx context.Context, topic string, message GroupMessage) error {
	return a.one(ctx, topic, message, "delete", rights.Discarding, func(g *operate.Group) (int, error) { return g.Discard(ctx, []string{message.ID}) })
}

func (a *Admin) one(ctx context.Context, topic string, message GroupMessage, what string, work rights.Work, do func(*operate.Group) (int, error)) error {
	group := groupName(message.Group)
	_, err := over(ctx, a, topic, func(plain string) (int, error) {
		t, err := a.topic(ctx, plain, work)
		if err != nil {
			return 0, err
		}
		n, err := do(t.Group(group))
		if err == nil && n == 0 {
			err = fmt.Errorf("dead letter %q of group %q of topic %q: %w", message.ID, group, plain, ErrNotFound)
		}
		return n, err
	}, plus)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// RequeueAll requeues many dead letters of a group, in chunks, and returns how many. It ignores
// those that are added after it began, so that it ends even if all become dead again. Errors wrap
// ErrInvalidArgument for a wrong Bulk, as do those of PurgeDead and MoveDead.
func (a *Admin) RequeueAll(ctx context.Context, topic string, bulk Bulk) (int, error) {
	requeue := func(ctx context.Context, g *operate.Group, chunk []operate.Listed, spread *spread) (int, error) {
		return g.Requeue(ctx, ids(chunk), spread.dues(len(chunk))...)
	}
	return a.all(ctx, "requeue", topic, bulk, inChunks{work: rights.RequeueingMany, do: requeue})
}

// spread has messages become due evenly over some time.
type spread struct {
	from time.Time
	over time.Duration // 0: all are due at once
	of   int           // messages
	next int           // number of the next message, from 0 on
}

// dues returns when the next n messages are due; nil if all are due at once.
func (s *spread) dues(n int) (dues []queue.Due) {
	for range n {
		if s.over == 0 {
			break
		}
		dues = append(dues, queue.At(s.from.Add(time.Duration(float64(s.over)*float64(s.next)/float64(max(s.of, 1))))))
		s.next++
	}
	return dues
}

// PurgeDead deletes many dead letters of a group, in chunks, and returns how many. Errors are as
// for RequeueAll.
func (a *Admin) PurgeDead(ctx context.Context, topic string, bulk Bulk) (int, error) {
	purge := func(ctx context.Context, g *operate.Group, chunk []operate.Listed, _ *spread) (done int, err error) {
		for some := range slices.Chunk(chunk, purged) {
			n, err := g.Discard(ctx, ids(some))
			if done += n; err != nil {
				return done, err
			}
		}
		return done, nil
	}
	return a.all(ctx, "purge", topic, bulk, inChunks{work: rights.DiscardingMany, do: purge})
}

// purged is the maximum number of bodies deleted in one step. Redis takes milliseconds to free the
// memory of a thousand large bodies.
const purged = 100

// MoveDead publishes many dead letters of a group as new messages in the topic Bulk.To, deletes
// them here, in chunks, and returns how many. They are due at once, or as Bulk.Spread says. They
// keep their own limit of deliveries, but lose delay ID and expiry: for that they are unmarshaled
// and marshaled again. A message that the Unmarshaler refuses moves unchanged.
//
// Two topics may be on two servers. If the program crashes in between, no message is lost. A chunk
// is then due in Bulk.To a minute later, and may still be dead here.
//
// Errors wrap ErrInvalidTopic without Bulk.To, ErrInvalidArgument for a partitioned topic, of which
// one partition can be named, or ErrTopicMode for one with a Redis Stream. Others come from the
// Marshaler.
func (a *Admin) MoveDead(ctx context.Context, topic string, bulk Bulk) (int, error) {
	to := bulk.To
	if to == "" && bulk.DryRun {
		return a.all(ctx, "move", topic, bulk, inChunks{})
	}
	target, err := a.handle(to)
	if err != nil {
		return 0, fmt.Errorf("move: %w", err)
	}
	if to == topic {
		return 0, fmt.Errorf("move: %w: from topic %q to itself; RequeueAll does that", ErrInvalidArgument, topic)
	}
	if parts, err := a.parts(ctx, to); err != nil && !errors.Is(err, ErrForbidden) {
		return 0, fmt.Errorf("move: %w", err)
	} else if len(parts) > 0 {
		return 0, fmt.Errorf("move: %w: topic %q has partitions; name one of them, such as %q", ErrInvalidArgument, to, parts[0])
	}
	mover := target.Mover()
	move := func(ctx context.Context, g *operate.Group, chunk []operate.Listed, spread *spread) (int, error) {
		var whole []operate.Listed
		for _, l := range chunk {
			if l.Body == nil {
				continue
			}
			body, err := a.withoutDelayID(topic, to, l.Body)
			if err != nil {
				return 0, fmt.Errorf("message %s: %w", l.ID, err)
			}
			l.Body = body
			whole = append(whole, l)
		}
		if len(whole) > 0 { // otherwise the target need not exist
			if _, err := a.permits.Try(ctx, target.Topic, rights.Arriving); err != nil {
				return 0, fmt.Errorf("to topic %q: %w", to, err)
			}
		}
		return mover.Move(ctx, g, whole, spread.dues(len(whole))...)
	}
	return a.all(ctx, "move", topic, bulk, inChunks{work: rights.DiscardingMany, bodies: true, do: move})
}

// withoutDelayID returns the body without delay ID and expiry.
func (a *Admin) withoutDelayID(from, to string, body []byte) ([]byte, error) {
	msg, forStream, err := a.unmarshal(from, body)
	if err != nil {
		return body, nil // a subscriber could not read them either
	}
	keys := len(msg.Metadata)
	for _, key := range notForConsumers {
		delete(msg.Metadata, key)
	}
	if len(msg.Metadata) == keys && !forStream {
		return body, nil
	}
	return a.config.Marshaler.Marshal(to, msg)
}

// inChunks is how an operation on dead letters changes them.
type inChunks struct {
	work   rights.Work
	bodies bool // do needs the bodies
	do     func(context.Context, *operate.Group, []operate.Listed, *spread) (int, error)
}

// all runs the operation of a name on the current dead letters, in chunks.
func (a *Admin) all(ctx context.Context, name, topic string, bulk Bulk, d inChunks) (done int, err error) {
	group := groupName(bulk.Group)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s dead letters of group %q of topic %q: %w", name, group, topic, err)
		}
	}()
	o, _ := OperationNamed(name)
	if err := o.check(bulk); err != nil {
		return 0, err
	}
	if bulk.DryRun {
		d.work, d.bodies = rights.Surveying, false
	}
	left := newRest(bulk)
	return over(ctx, a, topic, func(plain string) (int, error) {
		bulk, some := left.next()
		if !some {
			return 0, nil
		}
		n, err := a.allOf(ctx, plain, group, bulk, d)
		left.used(n)
		return n, err
	}, plus)
}

// allOf is all for a plain topic.
func (a *Admin) allOf(ctx context.Context, topic, group string, bulk Bulk, d inChunks) (int, error) {
	l, err := a.letters(ctx, topic, group, bulk, d.work)
	if err != nil {
		return 0, err
	}
	if bulk.DryRun {
		return l.each(ctx, false, func(chunk []operate.Listed) (int, error) { return len(chunk), nil })
	}
	spread := &spread{from: l.now, over: bulk.Spread}
	if bulk.Spread > 0 {
		counted := *l
		counted.bulk.Progress = nil
		spread.of, err = counted.each(ctx, false, func(chunk []operate.Listed) (int, error) { return len(chunk), nil })
		if err != nil {
			return 0, err
		}
	}
	return l.each(ctx, d.bodies, func(chunk []operate.Listed) (int, error) {
		return d.do(context.WithoutCancel(ctx), l.topic.Group(group), chunk, spread) // a chunk is finished
	})
}

// rest is what is left to do of a Bulk, in one partition after the other.
type rest struct {
	bulk Bulk
	done Progress // of the partitions before
	now  Progress
}

func newRest(bulk Bulk) *rest { return &rest{bulk: bulk} }

// next returns the Bulk for the next partition, and whether its Limit leaves anything to do.
func (r *rest) next() (Bulk, bool) {
	r.done = Progress{Looked: r.done.Looked + r.now.Looked, Done: r.done.Done + r.now.Done}
	r.now = Progress{}
	next := r.bulk
	if tell := r.bulk.Progress; tell != nil {
		next.Progress = func(p Progress) {
			r.now = p
			tell(Progress{Looked: r.done.Looked + p.Looked, Done: r.done.Done + p.Done})
		}
	}
	return next, r.bulk.Limit >= 0
}

// used takes what was done from the Limit.
func (r *rest) used(n int) {
	switch {
	case r.bulk.Limit > n:
		r.bulk.Limit -= n
	case r.bulk.Limit > 0:
		r.bulk.Limit = -1 // none is left; 0 means no limit
	}
}

// letters are the dead letters of a group at one time.
type letters struct {
	admin *Admin
	topic *operate.Topic
	group string
	now   time.Time // by the server's clock; later ones do not count
	bulk  Bulk
}

// letters returns the current dead letters of a group, after it checked the permissions for work.
func (a *Admin) letters(ctx context.Context, topic, group string, bulk Bulk, work rights.Work) (*letters, error) {
	t, err := a.topic(ctx, topic, work)
	if err != nil {
		return nil, err
	}
	stats, err := t.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if !stats.Has(group) {
		return nil, ErrNotFound
	}
	return &letters{a, t, group, stats.Now, bulk}, nil
}

// each passes the chosen dead letters to do, in chunks, the oldest first. do returns how many it
// changed. each returns how many were changed in all.
func (l *letters) each(ctx context.Context, bodies bool, do func([]operate.Listed) (int, error)) (int, error) {
	bytes := 0
	if bodies || l.bulk.Filter.needsBodies() {
		bytes = pageBytes
	}
	var progress Progress
	for cursor := ""; ; {
		page, err := l.topic.List(ctx, l.group, operate.Dead, cursor, 1000, bytes)
		if err != nil {
			return progress.Done, err
		}
		var chunk []operate.Listed
		for _, m := range page.Messages {
			if m.At.After(l.now) || l.bulk.Limit > 0 && progress.Done+len(chunk) >= l.bulk.Limit {
				page.Next = ""
				break
			}
			progress.Looked++
			if l.bulk.Filter.Matches(l.admin.listed(l.topic.Name, l.topic.Name, m)) {
				chunk = append(chunk, m)
			}
		}
		n, err := do(chunk)
		progress.Done += n
		if err != nil {
			return progress.Done, err
		}
		if l.bulk.Progress != nil {
			l.bulk.Progress(progress)
		}
		if cursor = page.Next; cursor == "" {
			return progress.Done, nil
		}
	}
}

func ids(messages []operate.Listed) []string {
	found := make([]string, len(messages))
	for i, m := range messages {
		found[i] = m.ID
	}
	return found
}
