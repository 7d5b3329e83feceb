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

// Progress is how far an operation on many messages is.
type Progress struct {
	Looked int // messages that were looked at
	Done   int // messages that it was done to
}

// Bulk says to which dead letters something is done, and how.
type Bulk struct {
	// Filter chooses them; the zero value is all of them.
	Filter Filter

	// Progress, if it is not nil, is called after each chunk of at most 1,000 messages.
	Progress func(Progress)
}

// Requeue has a dead letter of a group delivered again, as if for the first time: its deliveries are counted
// anew, and its expiry no longer counts. Delivery.Redelivered tells of it.
//
// Errors wrap ErrNotFound if there is no such dead letter, or come from ctx or Redis.
func (a *Admin) Requeue(ctx context.Context, topic, group, id string) error {
	return a.one(ctx, topic, group, id, "requeue", queue.Requeueing, func(g *operate.Group) (int, error) { return g.Requeue(ctx, []string{id}) })
}

// DeleteDead forgets a dead letter of a group. Errors wrap ErrNotFound if there is no such dead letter, or
// come from ctx or Redis.
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

// RequeueAll is Requeue for many dead letters of a group, in chunks. It returns how many were requeued. What
// dies after it began is left alone, so it ends even if all of them die again.
func (a *Admin) RequeueAll(ctx context.Context, topic, group string, bulk Bulk) (int, error) {
	return a.all(ctx, topic, group, bulk, deed{what: "requeue", work: queue.RequeueingMany,
		do: func(g *operate.Group, chunk []operate.Listed) (int, error) { return g.Requeue(ctx, ids(chunk)) }})
}

// PurgeDead is DeleteDead for many dead letters of a group, in chunks. It returns how many were forgotten.
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
	return a.all(ctx, topic, group, bulk, deed{what: "purge", work: queue.DiscardingMany, do: purge})
}

// purged is how many bodies one step forgets at most: Redis takes milliseconds to free the memory of a thousand large ones.
const purged = 100

// MoveDead moves many dead letters of a group to another topic, in chunks, where they are new messages that
// are due at once. It returns how many were moved. They keep their own limit of deliveries, and no delay ID
// and no expiry: for that they are unmarshaled and marshaled again. What the Unmarshaler refuses moves as it is.
// A topic with a Redis Stream can be moved from, not to: ErrTopicMode.
//
// Two topics may be on two servers, so a chunk is published first, not due yet, and forgotten then; what was forgotten
// is due there from then on. What somebody else requeues, deletes or moves in between is theirs alone, and is not
// counted. If the program ends in between, or Redis does not answer, none is lost: the chunk is due in the other topic
// a minute later, and may be dead in this one still.
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
			body, err := a.anew(topic, to, l.Body)
			if err != nil {
				return 0, fmt.Errorf("message %s: %w", l.ID, err)
			}
			l.Body = body
			whole = append(whole, l)
		}
		if len(whole) > 0 { // else there need not be such a topic
			if _, err := a.permits.Try(ctx, target.Topic, queue.Arriving); err != nil {
				return 0, fmt.Errorf("to topic %q: %w", to, err)
			}
		}
		return mover.Move(ctx, g, whole)
	}
	return a.all(ctx, topic, group, bulk, deed{what: "move", work: queue.DiscardingMany, bodies: true, do: move})
}

// anew returns the body of a message that has neither a delay ID nor an expiry any more.
func (a *Admin) anew(from, to string, body []byte) ([]byte, error) {
	msg, forStream, err := a.unmarshal(from, body)
	if err != nil {
		return body, nil // it has none that a subscriber would read
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

// deed is what is done to many dead letters.
type deed struct {
	what   string
	work   queue.Work
	bodies bool // do needs them
	do     func(*operate.Group, []operate.Listed) (int, error)
}

// all does something to the dead letters that there are now, chunk by chunk.
func (a *Admin) all(ctx context.Context, topic, group string, bulk Bulk, d deed) (done int, err error) {
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
