package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Stats is what a topic holds at one time.
type Stats struct {
	Now      time.Time
	Messages int // bodies
	Waiting  int
	NextDue  time.Time // of what waits; zero: none
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
	Name                          string
	Ready, InHand, Retrying, Dead int
	OldestDue                     time.Time // of ready; zero: none, as for the times below
	NextLease                     time.Time // the first end of a lease
	NextRetry, OldestDead         time.Time
	Waiters, Resting, Held        int // waiting and resting subscriptions; valid leases
	Paused                        Pause
	MaxDeliveries                 int
	Retention                     time.Duration // negative: for ever
	MaxDead                       int           // 0: no limit
	Ends                          time.Time     // when the group is removed if it is not used
	Suspects                      int           // messages whose last lease expired
	Counters                      GroupCounters
	Lateness                      queue.Lateness // of all deliveries
	Latest                        time.Duration
	LatestSince                   time.Time // deliveries before are not in Latest
	Seen                          time.Time // when a subscription last got a message
	SingleActive                  bool
	Active                        queue.Active
	Standby                       int // subscriptions that stand by
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
	return t.NewCall(&queue.StatsScript, queue.Target{Groups: groups.Names}, "version", groups.Version)
}

// readStats reads the reply of the stats script about a topic with these groups. It returns
// queue.ErrStale if the groups have changed.
func readStats(reply []any, groups *queue.Groups) (stats Stats, err error) {
	r, err := whole(queue.StatsScript.Read(reply))
	if err != nil {
		return stats, err
	}
	each := r.Each()
	if len(each) != len(groups.Names) {
		return stats, fmt.Errorf("stats: unexpected reply of %d parts about %d groups", len(reply), len(groups.Names))
	}
	fields := []any{r.Part("counters")}
	for _, g := range each {
		fields = append(fields, g.Part("stats"))
	}
	if i := slices.IndexFunc(fields, func(part any) bool { return !isFields(part) }); i >= 0 {
		return stats, fmt.Errorf("stats: unexpected reply: counters are %.64q", fmt.Sprint(fields[i]))
	}
	stats = Stats{Now: queue.Instant(r.Text("now")), Messages: r.Number("messages"), Waiting: r.Number("waiting"),
		NextDue: queue.Instant(r.Text("next_due")), DelayIDs: r.Number("delay_ids"), Next: queue.Instant(r.Text("next")),
		Paused: readPause(r.Text("paused")), Stream: groups.Stream, Recurs: r.Number("schedules") > 0}
	total := readFields(r.Part("counters"))
	stats.Counters = Counters{Published: count(total["published"]), Replaced: count(total["replaced"]), LeftOut: count(total["left_out"]),
		RefusedFull: count(total["refused_full"]), RefusedOccurrences: count(total["refused_occurrences"]), Returned: count(total["returned"])}
	if at := count(total["returned_at"]); at > 0 {
		stats.ReturnedAt = time.UnixMilli(int64(at))
	}
	if stats.Now.IsZero() {
		return Stats{}, fmt.Errorf("stats: the server says that it is %.64q", r.Text("now"))
	}
	if stats.Next.IsZero() || !stats.Now.After(stats.Next.Add(queue.Grace)) { // the lease is valid
		stats.Holder = r.Text("holder")
	}
	failed, fault, _ := strings.Cut(r.Text("fault"), " ")
	stats.Fault, stats.FaultAt = fault, queue.Instant(failed)
	if !stats.Now.After(queue.Instant(r.Text("until_ms"))) {
		stats.Standby = r.Text("standby")
	}
	for i, name := range groups.Names {
		stats.Groups = append(stats.Groups, readGroupStats(name, stats.Now, each[i]))
	}
	slices.SortFunc(stats.Groups, func(a, b GroupStats) int { return strings.Compare(a.Name, b.Name) })
	return stats, nil
}

func readGroupStats(name string, now time.Time, r queue.Reply) GroupStats {
	g := GroupStats{Name: name, Ready: r.Number("ready"), InHand: r.Number("in_hand"), NextLease: queue.Instant(r.Text("first_deadline")),
		Retrying: r.Number("retrying"), NextRetry: queue.Instant(r.Text("first_retry")), Dead: r.Number("dead"), OldestDead: queue.Instant(r.Text("first_death")),
		Waiters: r.Number("waiters"), Resting: r.Number("resting"), Paused: readPause(r.Text("paused")), Ends: queue.Instant(r.Text("ends")),
		Held: r.Number("held"), Suspects: r.Number("suspects"), Standby: r.Number("standbys"), Active: queue.ReadActive(r.Text("active"))}
	counted := readFields(r.Part("stats"))
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
	if _, due, ok := strings.Cut(r.Text("first_ready"), ":"); ok {
		g.OldestDue = queue.Instant(due)
	}
	o := queue.ParseGroupOptions(r.Text("options"))
	g.MaxDeliveries, g.Retention, g.MaxDead, g.SingleActive = o.MaxDeliveries, o.Retention, o.MaxDead, o.SingleActive
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
