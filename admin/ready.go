package admin

import (
	"context"
	"errors"
	"fmt"
	"time"
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

	// Scheduled tells that some process does the due-time work.
	Scheduled bool

	// Lag is for how long something has been due that was not done: a message not made ready, a lease that
	// ran out not taken back. It is zero if all is done. What a pause keeps from a Redis Stream does not count.
	Lag time.Duration

	// Waiting is for how long the next message of a group that is not paused has been ready and not been
	// taken: the longest of all groups.
	Waiting time.Duration
}

// Err says what keeps the topics from being ready, or is nil: a topic that nobody schedules, or whose Lag is
// above what is allowed.
func (r Readiness) Err(maxLag time.Duration) error {
	var all []error
	for _, t := range r.Topics {
		if !t.Scheduled {
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
		if err := a.config.Client.Ping(ctx).Err(); err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
	}
	var r Readiness
	for _, topic := range topics {
		s, err := a.Stats(ctx, topic)
		if err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
		t := TopicReadiness{Topic: topic, Scheduled: s.Scheduled}
		since := func(at time.Time) time.Duration {
			if at.IsZero() || len(s.Groups) == 0 { // what is due before there is a group waits for one
				return 0
			}
			return max(0, s.Now.Sub(at))
		}
		t.Lag = since(s.NextLook)
		if !s.rests() {
			t.Lag = max(t.Lag, since(s.NextDue))
		}
		for _, g := range s.Groups {
			if !s.rests() {
				t.Lag = max(t.Lag, since(g.NextRetry))
			}
			if s.PausedSince.IsZero() && g.PausedSince.IsZero() {
				t.Waiting = max(t.Waiting, since(g.OldestDue))
			}
		}
		r.Topics = append(r.Topics, t)
	}
	return r, nil
}
