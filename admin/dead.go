package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

var (
	errNoBody    = errors.New("the body is gone from Redis")
	errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")
)

// Progress is the progress of an operation on many messages.
type Progress struct {
	Looked int // messages examined
	Done   int // messages changed
}

// Bulk chooses the dead letters of an operation, and reports its progress.
type Bulk struct {
	// Filter chooses dead letters. The zero value chooses all.
	Filter Filter

	// Progress, if not nil, is called after each chunk of at most 1,000 messages.
	Progress func(Progress)
}

// Requeue makes a dead letter of a group ready again. Its deliveries are counted from zero, and its
// expiry no longer applies. Delivery.Redelivered is true for the next delivery.
//
// Errors wrap ErrNotFound if there is no such dead letter, or come from ctx or Redis.
func (a *Admin) Requeue(ctx context.Context, topic, group, id string) error {
	return a.one(ctx, topic, group, id, "requeue", queue.Requeueing, func(g *operate.Group) (int, error) { return g.Requeue(ctx, []string{id}) })
}

// DeleteDead deletes a dead letter of a group. Errors wrap ErrNotFound if there is no such dead
// letter, or come from ctx or Redis.
func (a *Admin) DeleteDead(ctx context.Context, topic, group, id string) error {
	return a.one(ctx, topic, group, id, "delete", queue.Discarding, func(g *operate.Group) (int, error) { return g.Discard(ctx, []string{id}) })
}

func (a *Admin) one(ctx context.Context, topic, group, id, what string, work queue.Work, do func(*operate.Group) (int, error)) error {
	group = groupName(group)
	t, err := a.topic(ctx, topic, work)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	n, err := do(t.Group(group))
	if err == nil && n == 0 {
		err = fmt.Errorf("dead letter %q of group %q of topic %q: %w", id, group, topic, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// RequeueAll requeues many dead letters of a group, in chunks, and returns how many. It ignores
// dead letters that are added after it began, so that it ends even if all become dead again.
func (a *Admin) RequeueAll(ctx context.Context, topic, group string, bulk Bulk) (int, error) {
	return a.all(ctx, topic, group, bulk, bulkWork{what: "requeue", work: queue.RequeueingMany,
		do: func(g *operate.Group, chunk []operate.Listed) (int, error) { return g.Requeue(ctx, ids(chunk)) }})
}

// PurgeDead deletes many dead letters of a group, in chunks, and returns how many.
func (a *Admin) PurgeDead(ctx context.Context, topic, group string, bulk Bulk) (int, error) {
	purge := func(g *operate.Group, chunk []operate.Listed) (done int, err error) {
		for some := range slices.Chunk(chunk, purged) {
			n, err := g.Discard(ctx, ids(some))
			if done += n; err != nil {
				return done, err
			}
		}
		return done, nil
	}
	return a.all(ctx, topic, group, bulk, bulkWork{what: "purge", work: queue.DiscardingMany, do: purge})
}

// purged is the maximum number of bodies deleted in one step. Redis takes milliseconds to free the
// memory of a thousand large bodies.
const purged = 100

// MoveDead moves many dead letters of a group to another topic, in chunks, and returns how many.
// There they are new messages that are due at once. They keep their own limit of deliveries, but
// lose delay ID and expiry; for that they are unmarshaled and marshaled again. A message that the
// Unmarshaler refuses moves unchanged. The target must not have a Redis Stream: ErrTopicMode.
//
// Two topics may be on two servers. So a chunk is first published to the target, due in a minute,
// and then deleted here. The messages that were deleted here become due there at once. A message
// that another operator requeued, deleted or moved meanwhile is not moved and not counted. If the
// program crashes in between, or Redis does not answer, no message is lost. The chunk is due in the
// target a minute later, and may still be dead here.
func (a *Admin) MoveDead(ctx context.Context, topic, group, to string, bulk Bulk) (int, error) {
	target, err := a.handle(to)
	if err != nil {
		return 0, fmt.Errorf("move: %w", err)
	}
	if to == topic {
		return 0, fmt.Errorf("move: %w: from topic %q to itself; RequeueAll does that", ErrInvalidArgument, topic)
	}
	mover := target.Mover()
	move := func(g *operate.Group, chunk []operate.Listed) (int, error) {
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
			if _, err := a.permits.Try(ctx, target.Topic, queue.Arriving); err != nil {
				return 0, fmt.Errorf("to topic %q: %w", to, err)
			}
		}
		return mover.Move(ctx, g, whole)
	}
	return a.all(ctx, topic, group, bulk, bulkWork{what: "move", work: queue.DiscardingMany, bodies: true, do: move})
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

// bulkWork is an operation on many dead letters.
type bulkWork struct {
	what   string
	work   queue.Work
	bodies bool // do needs the bodies
	do     func(*operate.Group, []operate.Listed) (int, error)
}

// all runs the operation on the current dead letters, in chunks.
func (a *Admin) all(ctx context.Context, topic, group string, bulk Bulk, d bulkWork) (done int, err error) {
	group = groupName(group)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s dead letters of group %q of topic %q: %w", d.what, group, topic, err)
		}
	}()
	t, err := a.topic(ctx, topic, d.work)
	if err != nil {
		return 0, err
	}
	stats, err := t.Stats(ctx)
	if err != nil {
		return 0, err
	}
	if !stats.Has(group) {
		return 0, ErrNotFound
	}
	bytes := 0
	if d.bodies || bulk.Filter.needsBodies() {
		bytes = pageBytes
	}
	var progress Progress
	for cursor := ""; ; {
		page, err := t.List(ctx, group, operate.Dead, cursor, 1000, bytes)
		if err != nil {
			return progress.Done, err
		}
		var chunk []operate.Listed
		for _, l := range page.Messages {
			if l.At.After(stats.Now) {
				page.Next = ""
				break
			}
			progress.Looked++
			if bulk.Filter.matches(a.listed(topic, group, Dead, l)) {
				chunk = append(chunk, l)
			}
		}
		n, err := d.do(t.Group(group), chunk)
		progress.Done += n
		if err != nil {
			return progress.Done, err
		}
		if bulk.Progress != nil {
			bulk.Progress(progress)
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
