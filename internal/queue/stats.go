package queue

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stats is what a topic holds at one time.
type Stats struct {
	Now      time.Time
	Messages int // bodies
	Pending  int
	NextDue  time.Time // of pending; zero: none
	DelayIDs int       // that are taken
	Next     time.Time // when the scheduler has to look; zero: no need
	Holder   string    // of the scheduling lease, or "": an address, of one that is not overdue
	Standby  string    // who watches the holder, or ""
	Paused   time.Time // since when; zero: it is not
	Stream   bool      // its messages go into a stream
	Groups   []GroupStats
}

// Rests tells that what is due does not move, because the topic has a stream and is paused.
func (s Stats) Rests() bool {
	return s.Stream && (!s.Paused.IsZero() || slices.ContainsFunc(s.Groups, func(g GroupStats) bool { return !g.Paused.IsZero() }))
}

// GroupStats is what a group of it holds.
type GroupStats struct {
	Name                      string
	Ready, Unack, Retry, Dead int
	OldestDue                 time.Time // of ready; zero: none, as in what follows
	NextLease                 time.Time // the first deadline of unack
	NextRetry, OldestDead     time.Time
	Waiters, Resting, Held    int       // subscriptions that wait, that rest; messages under a valid lease
	Paused                    time.Time // since when
	MaxDeliveries             int
	Retention                 time.Duration // negative: for ever
	Ends                      time.Time     // at which it is removed if it is not used
	Delivered, Dropped        int
	LatenessMillis            int64 // of all deliveries together
	Latest                    time.Duration
	Seen                      time.Time // when a subscription last got a message
}

// Subscribed tells that some subscription waits for messages, or holds one.
func (g GroupStats) Subscribed() bool { return g.Waiters+g.Resting+g.Held > 0 }

// Has tells whether the topic has the group.
func (s Stats) Has(group string) bool {
	return slices.ContainsFunc(s.Groups, func(g GroupStats) bool { return g.Name == group })
}

// Stats reads them all, groups by name.
func (t *Topic) Stats(ctx context.Context) (stats Stats, err error) {
	k := t.keys
	err = t.withExisting(ctx, func(groups *Groups) error {
		keys := []string{k.Meta(), k.Groups(), k.Messages(), k.Pending(), k.Taken(), k.Scheduler(), k.Paused(), k.Idle()}
		args := []any{groups.Version}
		for _, g := range groups.Names {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Retry(g), k.Dead(g), k.Waiters(g), k.Resting(g), k.Stats(g))
			args = append(args, g)
		}
		call := &Call{script: &statsScript, keys: keys, args: args}
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		reply, err := call.cmd.Slice()
		if err != nil {
			return err
		}
		stats, err = readStats(reply, groups)
		return err
	})
	return stats, err
}

// readStats reads what stats answers about a topic with these groups; errStale if it has others by now.
func readStats(reply []any, groups *Groups) (stats Stats, err error) {
	if len(reply) == 1 && reply[0] == "stale" {
		return stats, errStale
	}
	const head, each = 11, 19
	if len(reply) != head+each*len(groups.Names) {
		return stats, fmt.Errorf("stats: unexpected reply of %d parts about %d groups", len(reply), len(groups.Names))
	}
	err = checkParts("stats", reply, func(i int) func(any) bool {
		counts := []int{2, 3, 5}
		if i >= head {
			i, counts = (i-head)%each, []int{0, 2, 4, 6, 8, 9, 13}
		}
		if slices.Contains(counts, i) {
			return isNumber
		}
		return isText
	})
	if err != nil {
		return stats, err
	}
	stats = Stats{Now: instant(text(reply[1])), Messages: count(reply[2]), Pending: count(reply[3]),
		NextDue: instant(text(reply[4])), DelayIDs: count(reply[5]), Next: instant(text(reply[6])),
		Paused: instant(text(reply[10])), Stream: groups.Stream}
	if stats.Now.IsZero() {
		return Stats{}, fmt.Errorf("stats: the server says that it is %.64q", text(reply[1]))
	}
	if stats.Next.IsZero() || !stats.Now.After(stats.Next.Add(grace)) { // else the lease has ended
		stats.Holder = text(reply[7])
	}
	if !stats.Now.After(instant(text(reply[9]))) {
		stats.Standby = text(reply[8])
	}
	for i, name := range groups.Names {
		stats.Groups = append(stats.Groups, readGroupStats(name, reply[head+each*i:]))
	}
	slices.SortFunc(stats.Groups, func(a, b GroupStats) int { return strings.Compare(a.Name, b.Name) })
	return stats, nil
}

func readGroupStats(name string, r []any) GroupStats {
	g := GroupStats{Name: name, Ready: count(r[0]), Unack: count(r[2]), NextLease: instant(text(r[3])),
		Retry: count(r[4]), NextRetry: instant(text(r[5])), Dead: count(r[6]), OldestDead: instant(text(r[7])),
		Waiters: count(r[8]), Resting: count(r[9]), Paused: instant(text(r[10])), Ends: instant(text(r[12])),
		Held: count(r[13]), Delivered: count(r[14]), Dropped: count(r[17]), Seen: instant(text(r[18])),
		LatenessMillis: max(number(r[15]), 0), Latest: inMillis(r[16])}
	if _, due, ok := strings.Cut(text(r[1]), ":"); ok {
		g.OldestDue = instant(due)
	}
	limit, retention, _ := strings.Cut(text(r[11]), " ")
	g.MaxDeliveries, _ = strconv.Atoi(limit)
	g.Retention = -1
	if ms, err := strconv.ParseInt(retention, 10, 64); err == nil && ms >= 0 {
		g.Retention = time.Duration(min(ms, math.MaxInt64/1_000_000)) * time.Millisecond
	}
	return g
}
