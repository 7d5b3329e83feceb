package operate

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Worker is a subscription, and what it has in hand. Of one that has leases but has not shown
// itself lately, only the name is known.
type Worker struct {
	queue.Worker
	Group    string
	Active   bool // it is the active one of a group with SingleActive
	StandsBy bool // it is another one of such a group
	InHand   int
	Oldest   time.Time // since when it has the message that it has longest; zero: none
}

// scanned is how many fields one step of Workers reads, about.
const scanned = 500

// Workers returns the subscriptions of all groups, by group, host and process.
func (t *Topic) Workers(ctx context.Context) ([]Worker, error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return nil, err
	}
	now, err := servers.AskMaster(ctx, t.Client(), t.Key(), func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	if err != nil {
		return nil, refusal.Of(err)
	}
	var all []Worker
	for some := range slices.Chunk(groups.Names, together) {
		var keys []string
		for _, g := range some {
			keys = append(keys, t.Keys().Workers(g), t.Keys().Leases(g))
		}
		fields, err := t.hashes(ctx, append(keys, t.Keys().Active()))
		if err != nil {
			return nil, err
		}
		for i, g := range some {
			found := workers(g, now, fields[2*i], fields[2*i+1])
			if record, single := fields[len(keys)][g]; single {
				for i := range found {
					found[i].Active = found[i].Subscription == queue.ReadActive(record).Subscription
					found[i].StandsBy = !found[i].Active
				}
			}
			all = append(all, found...)
		}
	}
	slices.SortFunc(all, func(a, b Worker) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID),
			strings.Compare(a.Subscription, b.Subscription))
	})
	return all, nil
}

// workers returns the subscriptions of a group, from what the hashes of workers and leases have.
func workers(group string, now time.Time, signs, leases map[string]string) []Worker {
	found := map[string]*Worker{}
	for subscription, text := range signs {
		if w := queue.ReadWorker(subscription, text); !w.Until.Before(now) {
			found[subscription] = &Worker{Worker: w, Group: group}
		}
	}
	for _, token := range leases {
		subscription := queue.SubscriptionOf(token)
		w := found[subscription]
		if w == nil {
			w = &Worker{Worker: queue.Worker{Subscription: subscription}, Group: group}
			found[subscription] = w
		}
		w.InHand++
		if since := queue.LeasedAt(token); !since.IsZero() && (w.Oldest.IsZero() || since.Before(w.Oldest)) {
			w.Oldest = since
		}
	}
	all := make([]Worker, 0, len(found))
	for _, w := range found {
		all = append(all, *w)
	}
	return all
}

// hashes reads hashes in steps. The first step of all is one pipeline.
func (t *Topic) hashes(ctx context.Context, keys []string) ([]map[string]string, error) {
	fields := make([]map[string]string, len(keys))
	cursors := make([]uint64, len(keys))
	for i := range fields {
		fields[i] = map[string]string{}
	}
	for first := true; first || slices.ContainsFunc(cursors, func(c uint64) bool { return c != 0 }); first = false {
		scans := make([]*redis.ScanCmd, len(keys))
		err := t.Client().Call(func(c redis.UniversalClient) error {
			p := c.Pipeline()
			for i, key := range keys {
				if first || cursors[i] != 0 {
					scans[i] = p.HScan(ctx, key, cursors[i], "", scanned)
				}
			}
			_, err := p.Exec(ctx)
			return err
		})
		if err != nil {
			return nil, refusal.Of(err)
		}
		for i, scan := range scans {
			if scan == nil {
				continue
			}
			var pairs []string
			pairs, cursors[i] = scan.Val()
			for pair := range slices.Chunk(pairs, 2) {
				fields[i][pair[0]] = pair[len(pair)-1]
			}
		}
	}
	return fields, nil
}
