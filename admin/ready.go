package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// ErrNotReady is wrapped by the errors of Readiness.Err.
var ErrNotReady = errors.New("not ready")

// Readiness is the answer for a health endpoint.
type Readiness struct {
	Topics []TopicReadiness `json:"topics"`
}

// TopicReadiness says whether a topic's messages become ready when they are due.
type TopicReadiness struct {
	Topic string `json:"topic"`

	// Scheduled is true if a scheduler is the topic's holder or standby and is connected to Redis
	// now. After a crash it is false until another scheduler takes over, at its next poll, some
	// seconds later. If a machine vanishes, it stays true until Redis notices, or until the next
	// event is a second overdue. If the Redis user may not run PUBSUB NUMSUB, the connection is not
	// checked.
	Scheduled bool `json:"scheduled"`

	// Fault is the last error of a scheduler of the topic, at most 512 bytes. It is "" if none has
	// failed since the due-time work was last done. FaultAt is when it failed, by the server's
	// clock. A scheduler that cannot reach Redis leaves no error there.
	Fault   string    `json:"fault,omitempty"`
	FaultAt time.Time `json:"fault_at"`

	// Pauses are the pauses of the topic and of its groups, that of the topic first. Messages of a
	// paused group are not delivered, and ReadyFor does not count them.
	Pauses []Pause `json:"pauses,omitempty"`

	// Idle is true if the topic needs no scheduler now. Either it has no group, or nothing waits
	// for a due time, a retry, or the end of a lease, a pause or a retention.
	Idle bool `json:"idle"`

	// Lag is how long the scheduler is behind, zero if it is not. It is the age of the oldest due
	// message that is not ready, of the oldest expired lease that was not taken back, or of a pause
	// that should have ended. Messages that a pause keeps from a Redis Stream do not count.
	Lag time.Duration `json:"lag"`

	// ReadyFor is how long the next ready message of a group has not been claimed: the maximum over
	// all groups that are not paused. In a topic without groups, it is how long the next message
	// has been due. Then nobody has subscribed yet, or only under another name.
	ReadyFor time.Duration `json:"ready_for"`
}

// Err returns an error for each topic that is neither Idle nor Scheduled, and for each whose Lag is
// above maxLag. It returns nil if there is none. Errors wrap ErrNotReady. The errors include Fault.
// Err ignores ReadyFor, because only the caller knows how fast consumers should be. It ignores
// Pauses, because operators make them.
func (r Readiness) Err(maxLag time.Duration) error {
	var all []error
	for _, t := range r.Topics {
		fault := ""
		if t.Fault != "" {
			fault = fmt.Sprintf("; its scheduler failed at %s: %s", t.FaultAt.UTC().Format(time.RFC3339), t.Fault)
		}
		switch {
		case t.Scheduled || t.Idle:
		case t.Fault != "":
			all = append(all, fmt.Errorf("%w: no scheduler serves topic %q without an error%s", ErrNotReady, t.Topic, fault))
		default:
			all = append(all, fmt.Errorf("%w: no scheduler serves topic %q", ErrNotReady, t.Topic))
		}
		if t.Lag > maxLag {
			all = append(all, fmt.Errorf("%w: topic %q is %v behind, at most %v is allowed%s", ErrNotReady, t.Topic, t.Lag, maxLag, fault))
		}
	}
	return errors.Join(all...)
}

// Ready returns whether the topics' messages become ready when they are due. Errors wrap
// ErrNotFound for a topic that does not exist, ErrInvalidTopic, ErrForbidden or ErrLayout,
// ErrNotReady if the server is a replica, or come from ctx or Redis. Each partition of a
// partitioned topic has a TopicReadiness of its own. A health endpoint passes a context with a
// short timeout:
//
//	readiness, err := a.Ready(ctx, "orders")
//	if err == nil {
//		err = readiness.Err(5 * time.Second)
//	}
func (a *Admin) Ready(ctx context.Context, topics ...string) (Readiness, error) {
	if len(topics) == 0 {
		if err := queue.PingRegistry(ctx, a.client, a.config.KeyPrefix); err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
	}
	var r Readiness
	for _, topic := range topics {
		all, err := over(ctx, a, topic, func(plain string) ([]TopicReadiness, error) { return a.ready(ctx, plain) }, appendTo)
		if err != nil {
			return Readiness{}, fmt.Errorf("ready: %w", err)
		}
		r.Topics = append(r.Topics, all...)
	}
	return r, nil
}

func (a *Admin) ready(ctx context.Context, topic string) ([]TopicReadiness, error) {
	c, err := a.counts(ctx, topic)
	if err != nil {
		return nil, err
	}
	t := readiness(readStats(topic, c), c)
	of := queue.NewTopic(a.client, a.config.KeyPrefix, topic)
	switch master, err := a.client.ReplicaOf(ctx, of.Key()); {
	case err != nil:
		return nil, err
	case master != "":
		return nil, fmt.Errorf("%w: Redis is a replica, where nothing can be scheduled: connect to its master, %s", ErrNotReady, master)
	}
	t.Scheduled, err = wake.Listening(ctx, a.client, of, c.Holder(), c.Standby())
	if err != nil {
		return nil, fmt.Errorf("find the scheduler of topic %q: %w", topic, err)
	}
	return []TopicReadiness{t}, nil
}

// readiness returns all fields except Scheduled, from the topic's Stats and the counts that these
// are from. The scheduler's next look does not tell Scheduled: it may be for what was done
// meanwhile.
func readiness(s Stats, c operate.Counts) TopicReadiness {
	t := TopicReadiness{Topic: s.Topic, Fault: s.Fault, FaultAt: s.FaultAt, Idle: true}
	since := func(at time.Time) time.Duration {
		if at.IsZero() || len(s.Groups) == 0 { // without a group, due messages wait for the first one
			return 0
		}
		return max(0, s.Now.Sub(at))
	}
	awaits := func(at time.Time) {
		t.Idle = t.Idle && (at.IsZero() || len(s.Groups) == 0)
		t.Lag = max(t.Lag, since(at))
	}
	pause := func(p *Pause) {
		if p != nil {
			t.Pauses = append(t.Pauses, *p)
			awaits(p.Until)
		}
	}
	pause(s.Pause)
	if !c.Rests() {
		awaits(s.NextDue)
	}
	if len(s.Groups) == 0 && s.Pause == nil && !s.NextDue.IsZero() {
		t.ReadyFor = max(0, s.Now.Sub(s.NextDue))
	}
	for i, g := range s.Groups {
		pause(g.Pause)
		awaits(c.Groups[i].Time("first_deadline"))
		if !c.Rests() {
			awaits(g.NextRetry)
		}
		if !g.OldestDead.IsZero() && g.DeadRetention >= 0 {
			t.Idle = false
		}
		if s.Pause == nil && g.Pause == nil {
			t.ReadyFor = max(t.ReadyFor, since(g.OldestDue))
		}
	}
	return t
}
