package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// ErrNotReady is wrapped by the error of Readiness.Err.
var ErrNotReady = errors.New("not ready")

// Readiness is what a health endpoint asks for.
type Readiness struct {
	Topics []TopicReadiness
}

// TopicReadiness is whether a topic's messages become ready when they are due.
type TopicReadiness struct {
	Topic string

	// Scheduled tells that a process does the due-time work: it holds the topic's scheduling lease, or watches
	// who does, and it is connected to Redis at this moment. A process that was killed is not, and the topic
	// is not Scheduled until another takes its place: at the latest with its next poll, some seconds later.
	// One whose machine vanished is thought to be there until Redis misses it, or the next event is a second
	// overdue. If the user of Redis may not ask who is connected (PUBSUB NUMSUB), the lease alone counts.
	Scheduled bool

	// Idle tells that nothing is to come that takes anybody: nothing waits for its due time, a retry, or the
	// end of a lease or of a retention; or the topic has no group. The lease may have ended without harm.
	Idle bool

	// Lag is for how long something has been due that was not done: a message not made ready, a lease that
	// ran out not taken back. It is zero if all is done. What a pause keeps from a Redis Stream does not count.
	Lag time.Duration

	// Waiting is for how long the next message of a group that is not paused has been ready and not been
	// taken: the longest of all groups. If the topic has no group, for how long its next message has been due: nobody
	// has subscribed yet, or not under this name.
	Waiting time.Duration
}

// Err says what keeps the topics from being ready, or is nil: a topic that is not Idle and that nobody
// schedules, or whose Lag is above what is allowed. Waiting is for the caller to judge, who knows how fast
// consumers should be.
func (r Readiness) Err(maxLag time.Duration) error {
	var all []error
	for _, t := range r.Topics {
		if !t.Scheduled && !t.Idle {
			all = append(all, fmt.Errorf("%w: nobody schedules topic %q", ErrNotReady, t.Topic))
		}
		if t.Lag > maxLag {
			all = append(all, fmt.Errorf("%w: topic %q is %v behind, %v is allowed", ErrNotReady, t.Topic, t.Lag, maxLag))
		}
	}
	return errors.Join(all...)
}

// Ready asks Redis whether these topics' messages become ready when they are due. An error says that Redis
// does not answer, or wraps ErrNotFound for a topic that there is not. A health endpoint gives it a context
// that ends soon:
//
//	readiness, err := a.Ready(ctx, "orders")
//	if err == nil {
//		err = readiness.Err(5 * time.Second)
//	}
func (a *Admin) Ready(ctx context.Context, topics ...string) (Readiness, error) {
	if len(topics) == 0 {
		if err := a.client.Ping(ctx).Err(); err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
	}
	var r Readiness
	for _, topic := range topics {
		s, err := a.stats(ctx, topic)
		if err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
		scheduled, err := wake.Listening(ctx, a.client, s.Holder, s.Standby)
		if err != nil {
			return Readiness{}, fmt.Errorf("ready: find out who schedules topic %q: %w", topic, err)
		}
		t := readiness(topic, s)
		t.Scheduled = scheduled
		r.Topics = append(r.Topics, t)
	}
	return r, nil
}

// readiness is what the topic's own data say.
func readiness(topic string, s operate.Stats) TopicReadiness {
	t := TopicReadiness{Topic: topic, Idle: s.Next.IsZero() || len(s.Groups) == 0}
	since := func(at time.Time) time.Duration {
		if at.IsZero() || len(s.Groups) == 0 { // what is due before there is a group waits for one
			return 0
		}
		return max(0, s.Now.Sub(at))
	}
	t.Lag = since(s.Next)
	if !s.Rests() {
		t.Lag = max(t.Lag, since(s.NextDue))
	}
	if len(s.Groups) == 0 && s.Paused.IsZero() && !s.NextDue.IsZero() {
		t.Waiting = max(0, s.Now.Sub(s.NextDue))
	}
	for _, g := range s.Groups {
		t.Lag = max(t.Lag, since(g.NextLease))
		if !s.Rests() {
			t.Lag = max(t.Lag, since(g.NextRetry))
		}
		if s.Paused.IsZero() && g.Paused.IsZero() {
			t.Waiting = max(t.Waiting, since(g.OldestDue))
		}
	}
	return t
}
