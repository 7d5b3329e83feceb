package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
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

	// Heard tells that the Redis server hears its process now, and did so when it was last seen. It
	// is false too if the server's user may not ask. Then nobody knows when the process is gone.
	// GoneSince is since when it was found gone, so that what it had in hand is delivered again.
	// Zero means that it was not.
	Heard     bool      `json:"heard"`
	GoneSince time.Time `json:"gone_since"`

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

// Workers returns who subscribes to a topic, by group, host and PID, for each partition. It leaves
// out a subscription that is closed. If its process ended without that, it is left out when its
// leases are over, and 90 seconds after it was last seen, or later if its LeaseDuration is longer.
// A topic with a Redis Stream has none.
func (a *Admin) Workers(ctx context.Context, topic string) ([]Worker, error) {
	return over(ctx, a, topic, func(plain string) ([]Worker, error) { return a.workers(ctx, plain) }, appendTo)
}

// workersTogether is how many groups one step of Workers reads at most.
const workersTogether = 100

func (a *Admin) workers(ctx context.Context, topic string) ([]Worker, error) {
	t, err := a.topic(ctx, topic, rights.Watching)
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	groups, err := t.Existing(ctx)
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	now, err := t.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("workers of topic %q: %w", topic, err)
	}
	var all []Worker
	for some := range slices.Chunk(groups.Names, workersTogether) {
		var keys []string
		for _, g := range some {
			keys = append(keys, t.Keys().Workers(g), t.Keys().Leases(g))
		}
		fields, err := t.Hashes(ctx, append(keys, t.Keys().Active()))
		if err != nil {
			return nil, fmt.Errorf("workers of topic %q: %w", topic, err)
		}
		for i, g := range some {
			found := workersOf(topic, g, now, fields[2*i], fields[2*i+1])
			if record, single := fields[len(keys)][g]; single {
				for i := range found {
					found[i].Active = found[i].Subscription == queue.ReadActive(record).Subscription
					found[i].StandsBy = !found[i].Active
				}
			}
			all = append(all, found...)
		}
	}
	if err := a.hear(ctx, t.Topic, all); err != nil {
		return nil, fmt.Errorf("workers of topic %q: %w", topic, err)
	}
	slices.SortFunc(all, func(a, b Worker) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID),
			strings.Compare(a.Subscription, b.Subscription))
	})
	return all, nil
}

// hear clears Heard of workers whose processes the server does not hear now.
func (a *Admin) hear(ctx context.Context, t *queue.Topic, all []Worker) error {
	var addresses []string
	for _, w := range all {
		if w.Heard {
			addresses = append(addresses, w.Address)
		}
	}
	gone, err := wake.Gone(ctx, a.client, []wake.Addressed{{Topic: t, Addresses: addresses}})
	mute := errors.Is(err, ErrForbidden)
	if err != nil && !mute {
		return err
	}
	for i := range all {
		all[i].Heard = all[i].Heard && !mute && !gone[all[i].Address]
	}
	return nil
}

// workersOf returns the subscriptions of a group, from what its hashes of workers and leases have.
// Of one that has leases but has not shown itself lately, only the name is known.
func workersOf(topic, group string, now time.Time, signs, leases map[string]string) []Worker {
	found := map[string]*Worker{}
	for subscription, text := range signs {
		if w := queue.ReadWorker(subscription, text); !w.Until.Before(now) {
			found[subscription] = &Worker{Topic: topic, Group: group, Host: w.Host, PID: w.PID, Program: w.Program, Version: w.Version,
				Subscription: subscription, Address: w.Address, Since: w.Since, Seen: w.Seen, Heard: w.Heard, GoneSince: w.Gone}
		}
	}
	for _, token := range leases {
		subscription := queue.SubscriptionOf(token)
		w := found[subscription]
		if w == nil {
			w = &Worker{Topic: topic, Group: group, Subscription: subscription}
			found[subscription] = w
		}
		w.InHand++
		w.Oldest = earliest(w.Oldest, queue.LeasedAt(token))
	}
	all := make([]Worker, 0, len(found))
	for _, w := range found {
		all = append(all, *w)
	}
	return all
}
