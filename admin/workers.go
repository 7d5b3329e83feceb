package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Worker is a subscription to a topic: one Subscribe of a process.
type Worker struct {
	Topic string `json:"topic"`
	Group string `json:"group"`

	// Host, PID and Program are the process. Version is the version of its main module, as
	// debug.ReadBuildInfo tells it. All are zero for a subscription that holds messages and has not
	// shown itself lately, because its process has ended, for example.
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Version string `json:"version,omitempty"`

	// Subscription is the name of the subscription in Redis, and of its main lane. The second lane
	// has "+" behind it. Address is where it is woken.
	Subscription string `json:"subscription"`
	Address      string `json:"address,omitempty"`

	// Since is when it subscribed. Seen is when it last showed itself, at most every 30 seconds.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`

	// InHand is how many messages it has claimed and not settled, and Oldest is since when it has
	// the one that it has longest.
	InHand int       `json:"in_hand"`
	Oldest time.Time `json:"oldest"`

	// Active tells that it is the one that gets messages, in a group with
	// SubscriberConfig.SingleActive. StandsBy tells that it is another one of such a group. Both
	// are false in other groups.
	Active   bool `json:"active,omitempty"`
	StandsBy bool `json:"stands_by,omitempty"`
}

// Workers returns who subscribes to a topic, by group, host and PID. A subscription is gone when it
// is closed. If its process ends without that, it is gone 90 seconds after it was last seen, or
// later if its LeaseDuration is more than 90 seconds, and when its leases are over. A topic with a
// Redis Stream has none. A subscription to a partitioned topic is one to each partition.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden or ErrLayout, or come from ctx or Redis.
func (a *Admin) Workers(ctx context.Context, topic string) ([]Worker, error) {
	return over(ctx, a, topic, func(plain string) ([]Worker, error) { return a.workers(ctx, plain) }, appendTo)
}

func (a *Admin) workers(ctx context.Context, topic string) ([]Worker, error) {
	t, err := a.topic(ctx, topic, rights.Watching)
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	found, err := t.Workers(ctx)
	if err != nil {
		return nil, fmt.Errorf("workers of topic %q: %w", topic, err)
	}
	workers := make([]Worker, len(found))
	for i, w := range found {
		workers[i] = Worker{Topic: topic, Group: w.Group, Host: w.Host, PID: w.PID, Program: w.Program, Version: w.Version,
			Subscription: w.Subscription, Address: w.Address, Since: w.Since, Seen: w.Seen, InHand: w.InHand, Oldest: w.Oldest,
			Active: w.Active, StandsBy: w.StandsBy}
	}
	return workers, nil
}
