package publish

import (
	"context"
	"errors"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// topic makes the calls to Redis for the line of a topic.
type topic struct {
	engine *Engine
	queue  *queue.Topic
	line   line

	// Only for the call under way:
	number uint64    // of the last call to Redis
	listed time.Time // when the topic was last known to be in the registry; zero: never
}

func (e *Engine) newTopic(name string) *topic {
	t := &topic{engine: e, queue: e.config.Topic(name)}
	t.line.send, t.line.patience, t.line.underWay = t.send, e.config.WaitTimeout, &e.underWay
	return t
}

// send makes one call to Redis with the messages of these batches, and waits for replicas as long
// as patience. Messages get their IDs in the order in which they go out.
func (t *topic) send(messages []queue.Message, together []*Batch, patience time.Duration) error {
	t.number++
	err := t.publish(messages, together, patience)
	if err == nil {
		t.keepListed()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = endedCall{err}
	}
	if err != nil && t.engine.calls.Err() != nil {
		err = errors.Join(t.engine.config.Closed, err)
	}
	return err
}

func (t *topic) publish(messages []queue.Message, together []*Batch, patience time.Duration) error {
	e, ctx := t.engine, t.engine.calls
	evicts, err := e.permits.Try(ctx, t.queue, e.config.Work)
	if err != nil {
		return err
	}
	if evicts != "" {
		e.config.Evicts(evicts)
	}
	if err := e.ids.Give(messages, time.Now()); err != nil {
		return err
	}
	limit := queue.Limit{Messages: e.config.MaxWaiting}
	if limit.Messages > 0 {
		limit.Parts = parts(together)
	}
	if err := t.queue.PublishWithin(ctx, e.id, t.number, messages, limit); err != nil {
		return err
	}
	if e.config.WaitReplicas == 0 {
		return nil
	}
	return t.queue.AwaitReplicas(ctx, e.id, t.number, e.config.WaitReplicas, patience)
}

// endedCall is the error of a call to Redis that ended by a context which is not the caller's: by a
// timeout of the client, by WaitTimeout, or by Close. It does not wrap the context's error, which
// would say that nothing was published.
type endedCall struct{ error }

func (e endedCall) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.error, target)
}

func (e endedCall) As(target any) bool { return errors.As(e.error, target) }

// relistAfter is how often the engine looks whether a topic is still in the registry.
const relistAfter = 30 * time.Second

// keepListed has the topic entered in the registry again if it is missing there. In a Cluster the
// registry is on a node of its own, whose failover may forget an entry. Then no scheduler would
// find the topic. No caller waits for the look.
func (t *topic) keepListed() {
	if !t.engine.config.Relists || time.Since(t.listed) < relistAfter {
		return
	}
	first := t.listed.IsZero() // then the call has entered it
	t.listed = time.Now()
	if e := t.engine; !first && e.looks.Err() == nil {
		e.looking.Go(func() { t.relist(e.looks) })
	}
}

// relist uses a handle of its own, because the topic's is for the call under way.
func (t *topic) relist(ctx context.Context) {
	name := t.queue.Name
	if _, err := t.engine.config.Topic(name).Relist(ctx); err != nil && ctx.Err() == nil {
		t.engine.config.RelistFailed(name, err)
	}
}
