package operate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Stats is what a topic holds at one time.
type Stats struct {
	Now      time.Time
	Messages int // bodies
	Pending  int
	NextDue  time.Time // of pending; zero: none
	DelayIDs int       // delay IDs that are taken
	Counters Counters
	Next     time.Time // when the scheduler looks next; zero: never
	Holder   string    // address of the process with a valid scheduling lease; "": none
	Standby  string    // address of the process that watches the holder; "": none
	Fault    string    // error of the last scheduler that failed since the last promotion; "": none
	FaultAt  time.Time // when it failed
	Paused   Pause
	Stream   bool // its messages go into a stream
	Recurs   bool // it has recurring schedules, or had some

	ReturnedAt time.Time // when a recurring schedule last came back: see Counters.Returned; zero: none did
	Groups     []GroupStats
}

// Rests tells whether due messages stay where they are, because the topic has a stream and is
// paused.
func (s Stats) Rests() bool {
	return s.Stream && (!s.Paused.IsZero() || slices.ContainsFunc(s.Groups, func(g GroupStats) bool { return !g.Paused.IsZero() }))
}

// Pause is a pause of a group, or of the topic. The zero value is none.
type Pause struct {
	Since   time.Time
	By, Why string
	Until   time.Time // when it ends by itself; zero: never
}

// IsZero tells that there is no pause.
func (p Pause) IsZero() bool { return p.Since.IsZero() }

// readPause reads a pause as the stats script returns it, "" for none.
func readPause(text string) (p Pause) {
	part := append(strings.SplitN(text, " ", 4), "", "", "")
	p.Since, p.By, p.Why = queue.Instant(part[1]), queue.DecodeName(part[2]), part[3]
	if until := queue.Instant(part[0]); until.UnixMilli() > 0 {
		p.Until = until
	}
	return p
}

// GroupStats is what a group of the topic holds.
type GroupStats struct {
	Name                      string
	Ready, Unack, Retry, Dead int
	OldestDue                 time.Time // of ready; zero: none, as for the times below
	NextLease                 time.Time // the first deadline of unack
	NextRetry, OldestDead     time.Time
	Waiters, Resting, Held    int // waiting and resting subscriptions; valid leases
	Paused                    Pause
	MaxDeliveries             int
	Retention                 time.Duration // negative: for ever
	MaxDead                   int           // 0: no limit
	Ends                      time.Time     // when the group is removed if it is not used
	Suspects                  int           // messages whose last lease expired
	Counters                  GroupCounters
	Lateness                  queue.Lateness // of all deliveries
	Latest                    time.Duration
	LatestSince               time.Time // deliveries before are not in Latest
	Seen                      time.Time // when a subscription last got a message
	SingleActive              bool
	Active                    queue.Active
	Standby                   int // subscriptions that stand by
}

// Counters is what a topic has counted since it was created.
type Counters struct {
	Published   int // messages that the topic took
	Replaced    int // messages that others replaced by their delay IDs
	LeftOut     int // messages that were left out because their delay IDs were taken
	RefusedFull int // messages that were refused because the topic was full

	RefusedOccurrences int // occurrences of recurring schedules that their guards left out, because they came too late, the schedule had changed, or the clock had gone back
	Returned           int // recurring schedules that came back from a time at which the server's clock was ahead
}

// GroupCounters is what a group has counted since it was created.
type GroupCounters struct {
	Delivered  int // deliveries
	Acked      int
	Nacked     int // those that were postponed, too
	Retried    int // nacked messages that waited for a retry
	Dropped    int // messages that were dropped, because it was too late for them
	Expired    int // leases that ran out
	Suspects   int // messages that became suspects
	LeaseLost  int // messages whose lease was lost while a handler had them
	GivenUp    int // messages that handlers had not settled within CloseTimeout
	Dead       DeadCounters
	DeadPurged int // dead messages that were deleted because there were more than MaxDead
	Skipped    int // occurrences that were acked unhandled, because another one of their schedule was in hand
}

// DeadCounters counts the messages that died, by cause.
type DeadCounters struct {
	Deliveries int // nacked on the last delivery
	Lease      int // the lease expired on the last delivery
	Asked      int // the handler asked for it
	Late       int // not delivered in time
	Unmarshal  int // the Unmarshaler refused it
	Killed     int // an operator killed it
}

// Subscribed tells whether a subscription waits for messages, or holds one.
func (g GroupStats) Subscribed() bool { return g.Waiters+g.Resting+g.Held+g.Standby > 0 }

// Has tells whether the topic has the group.
func (s Stats) Has(group string) bool {
	return slices.ContainsFunc(s.Groups, func(g GroupStats) bool { return g.Name == group })
}

// Stats reads the counts of the topic and of its groups, by name.
func (t *Topic) Stats(ctx context.Context) (stats Stats, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		stats, err = t.stats(ctx, groups)
		return err
	})
	return stats, err
}

// stats reads the counts of the topic and of some of its groups.
func (t *Topic) stats(ctx context.Context, groups *queue.Groups) (Stats, error) {
	call := t.statsCall(groups)
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		return Stats{}, err
	}
	reply, err := call.Cmd().Slice()
	if err != nil {
		return Stats{}, err
	}
	return readStats(reply, groups)
}

// statsCall returns a call whose reply readStats reads.
func (t *Topic) statsCall(groups *queue.Groups) *queue.Call {
	k := t.Keys()
	keys := []string{k.Meta(), k.Groups(), k.Messages(), k.Pending(), k.Taken(), k.Scheduler(), k.Paused(), k.Idle(), k.Counters(), k.Resumes(),
		k.Schedules(), k.Active()}
	args := []any{groups.Version}
	for _, g := range groups.Names {
		keys = append(keys, k.Ready(g), k.Unack(g), k.Retry(g), k.Dead(g), k.Waiters(g), k.Resting(g), k.Stats(g), k.Suspects(g),
			k.Standby(g))
		args = append(args, g)
	}
	return queue.NewCall(&queue.StatsScript, keys, args...)
}

// readStats reads the reply of the stats script about a topic with these groups. It returns
// queue.ErrStale if the groups have changed.
func readStats(reply []any, groups *queue.Groups) (stats Stats, err error) {
	if len(reply) == 1 && reply[0] == "stale" {
		return stats, queue.ErrStale
	}
	const head, each = 14, 18
	if len(reply) != head+each*len(groups.Names) {
		return stats, fmt.Errorf("stats: unexpected reply of %d parts about %d groups", len(reply), len(groups.Names))
	}
	err = checkParts("stats", reply, func(i int) func(any) bool {
		counts, fields := []int{2, 3, 5, 13}, 12
		if i >= head {
			i, counts, fields = (i-head)%each, []int{0, 2, 4, 6, 8, 9, 13, 14, 15}, 17
		}
		switch {
		case slices.Contains(counts, i):
			return isNumber
		case i == fields:
			return isFields
		}
		return isText
	})
	if err != nil {
		return stats, err
	}
	stats = Stats{Now: queue.Instant(queue.Text(reply[1])), Messages: count(reply[2]), Pending: count(reply[3]),
		NextDue: queue.Instant(queue.Text(reply[4])), DelayIDs: count(reply[5]), Next: queue.Instant(queue.Text(reply[6])),
		Paused: readPause(queue.Text(reply[10])), Stream: groups.Stream,
		Recurs: count(reply[13]) > 0}
	total := readFields(reply[12])
	stats.Counters = Counters{Published: count(total["published"]), Replaced: count(total["replaced"]), LeftOut: count(total["left_out"]),
		RefusedFull: count(total["refused_full"]), RefusedOccurrences: count(total["refused_occurrences"]), Returned: count(total["returned"])}
	if at := count(total["returned_at"]); at > 0 {
		stats.ReturnedAt = time.UnixMilli(int64(at))
	}
	if stats.Now.IsZero() {
		return Stats{}, fmt.Errorf("stats: the server says that it is %.64q", queue.Text(reply[1]))
	}
	if stats.Next.IsZero() || !stats.Now.After(stats.Next.Add(queue.Grace)) { // the lease is valid
		stats.Holder = queue.Text(reply[7])
	}
	failed, fault, _ := strings.Cut(queue.Text(reply[11]), " ")
	stats.Fault, stats.FaultAt = fault, queue.Instant(failed)
	if !stats.Now.After(queue.Instant(queue.Text(reply[9]))) {
		stats.Standby = queue.Text(reply[8])
	}
	for i, name := range groups.Names {
		stats.Groups = append(stats.Groups, readGroupStats(name, stats.Now, reply[head+each*i:]))
	}
	slices.SortFunc(stats.Groups, func(a, b GroupStats) int { return strings.Compare(a.Name, b.Name) })
	return stats, nil
}

func readGroupStats(name string, now time.Time, r []any) GroupStats {
	g := GroupStats{Name: name, Ready: count(r[0]), Unack: count(r[2]), NextLease: queue.Instant(queue.Text(r[3])),
		Retry: count(r[4]), NextRetry: queue.Instant(queue.Text(r[5])), Dead: count(r[6]), OldestDead: queue.Instant(queue.Text(r[7])),
		Waiters: count(r[8]), Resting: count(r[9]), Paused: readPause(queue.Text(r[10])), Ends: queue.Instant(queue.Text(r[12])),
		Held: count(r[13]), Suspects: count(r[14]), Standby: count(r[15])}
	g.Active = queue.ReadActive(queue.Text(r[16]))
	counted := readFields(r[17])
	g.Seen = queue.Instant(queue.Text(counted["seen"]))
	g.Latest, g.LatestSince = latest(queue.Text(counted["latest_ms"]), now)
	of := func(field string) int { return max(count(counted[field]), 0) }
	died := func(c queue.Cause) int { return of("dead_" + string(c)) }
	g.Counters = GroupCounters{Acked: of("acked"), Nacked: of("nacked"), Retried: of("retried"), Dropped: of("dropped"), Skipped: of("skipped"), Expired: of("expired"),
		Suspects: of("suspects"), LeaseLost: of("lease_lost"), GivenUp: of("given_up"), DeadPurged: of("dead_purged"),
		Dead: DeadCounters{Deliveries: died(queue.LastDelivery), Lease: died(queue.LeaseExpired), Asked: died(queue.Asked),
			Late: died(queue.TooLate), Unmarshal: died(queue.Unreadable), Killed: died(queue.Killed)}}
	for i := range g.Lateness {
		g.Lateness[i] = of(queue.LateField(i))
		g.Counters.Delivered += g.Lateness[i]
	}
	if _, due, ok := strings.Cut(queue.Text(r[1]), ":"); ok {
		g.OldestDue = queue.Instant(due)
	}
	options := append(strings.Fields(queue.Text(r[11])), "", "", "", "")
	g.MaxDeliveries, _ = strconv.Atoi(options[0])
	g.Retention = -1
	if ms, err := strconv.ParseInt(options[1], 10, 64); err == nil && ms >= 0 {
		g.Retention = time.Duration(min(ms, math.MaxInt64/1_000_000)) * time.Millisecond
	}
	g.MaxDead = max(count(options[2]), 0)
	g.SingleActive = options[3] == "single"
	return g
}

// latest reads by how much messages were late at most, and since when: in the hour of now, and in
// the hour before.
func latest(text string, now time.Time) (most time.Duration, since time.Time) {
	since = now.UTC().Truncate(time.Hour).Add(-time.Hour)
	part := append(strings.Fields(text), "", "", "")
	switch hour := queue.Instant(part[1]); {
	case hour.Equal(since.Add(time.Hour)):
		most = max(inMillis(part[0]), inMillis(part[2]))
	case hour.Equal(since):
		most = inMillis(part[0])
	}
	return most, since
}
