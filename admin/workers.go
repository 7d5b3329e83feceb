package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Worker is a subscription to a topic: one Subscribe of a process.
type Worker struct {
	Topic string `json:"topic"`
	Group string `json:"group"`

	// Host, PID and Program are the process. Version is the version of its main module, as
	// debug.ReadBuildInfo tells it. All are zero for a subscription that holds messages and is not
	// known otherwise, because its process has ended long ago, for example.
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Version string `json:"version,omitempty"`

	// Subscription is the name of the subscription in Redis, and of its main lane. The second lane
	// has "+" behind it. Address is where it is woken.
	Subscription string `json:"subscription"`
	Address      string `json:"address,omitempty"`

	// Since is when it subscribed. Seen is when it last showed itself, at most every 30 seconds, or
	// claimed a message that it has in hand. If it is the only one of its group, that is
	// GroupStats.LastSeen.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`

	// Heard tells that the Redis server hears its process now, and did so when it was last seen. It
	// is false too if the server's user may not ask. Then nobody knows when the process is gone.
	// GoneSince is since when it is gone, so that what it had in hand is delivered again. That is
	// when it was found gone, or when it was last seen if nobody has looked since. Zero means that
	// it is not gone.
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

// Process returns the process in words, such as "billing on web-1, process 4711".
func (w Worker) Process() string {
	if w.Host == "" {
		return "a process that is unknown, because it may have ended"
	}
	text := fmt.Sprintf("%s on %s, process %d", cmp.Or(w.Program, "a program"), w.Host, w.PID)
	if !w.GoneSince.IsZero() {
		text += ", gone since " + w.GoneSince.UTC().Format(time.RFC3339)
	}
	return text
}

// Workers returns who subscribes to a topic, by group, host and PID, for each partition. It leaves
// out a subscription that is closed. If its process ended without that, it is left out once it has
// nothing in hand. If the server cannot tell that a process is gone, its subscription is left out
// when its leases are over, and 90 seconds after it was last seen, or later if its LeaseDuration is
// longer.
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
			keys = append(keys, t.Keys().Workers(g), t.Keys().Leases(g), t.Keys().Stats(g))
		}
		fields, err := t.Hashes(ctx, append(keys, t.Keys().Active()))
		if err != nil {
			return nil, fmt.Errorf("workers of topic %q: %w", topic, err)
		}
		for i, g := range some {
			found := workersOf(topic, g, now, fields[3*i], fields[3*i+1])
			if seen := operate.LastSeen(fields[3*i+2]); len(found) == 1 && found[0].Host != "" && seen.After(found[0].Seen) {
				found[0].Seen = seen
			}
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
	all = slices.DeleteFunc(all, func(w Worker) bool { return !w.GoneSince.IsZero() && w.InHand == 0 })
	slices.SortFunc(all, func(a, b Worker) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID),
			strings.Compare(a.Subscription, b.Subscription))
	})
	return all, nil
}

// hear clears Heard of workers whose processes the server does not hear now, and notes since when
// they are gone.
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
		w := &all[i]
		if w.Heard && !mute && gone[w.Address] && w.GoneSince.IsZero() {
			w.GoneSince = w.Seen
		}
		w.Heard = w.Heard && !mute && !gone[w.Address]
	}
	return nil
}

// workersOf returns the subscriptions of a group, from what its hashes of workers and leases have.
// One that has leases is there even if it has not shown itself lately. If its note is gone, only
// the name is known.
func workersOf(topic, group string, now time.Time, signs, leases map[string]string) []Worker {
	found := map[string]*Worker{}
	noted := func(subscription string) *Worker {
		w := queue.ReadWorker(subscription, signs[subscription])
		return &Worker{Topic: topic, Group: group, Host: w.Host, PID: w.PID, Program: w.Program, Version: w.Version,
			Subscription: subscription, Address: w.Address, Since: w.Since, Seen: w.Seen, Heard: w.Heard, GoneSince: w.Gone}
	}
	for subscription, text := range signs {
		if !queue.ReadWorker(subscription, text).Until.Before(now) {
			found[subscription] = noted(subscription)
		}
	}
	for _, token := range leases {
		subscription := queue.SubscriptionOf(token)
		w := found[subscription]
		if w == nil {
			w = noted(subscription)
			found[subscription] = w
		}
		w.InHand++
		leased := queue.LeasedAt(token)
		if w.Oldest = earliest(w.Oldest, leased); leased.After(w.Seen) && w.Host != "" {
			w.Seen = leased
		}
	}
	all := make([]Worker, 0, len(found))
	for _, w := range found {
		all = append(all, *w)
	}
	return all
}
