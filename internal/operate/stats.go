package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Counts is what a topic holds at one time, as the stats script replied. Its parts have the names
// that the header of the script declares.
type Counts struct {
	queue.Reply
	Err    error // of StatsOf: why the topic could not be read, and there is nothing else
	Now    time.Time
	Stream bool // its messages go into a stream
	Groups []GroupCounts
}

// GroupCounts is what a group of the topic holds.
type GroupCounts struct {
	queue.Reply
	Name string
}

// Counter returns a counter of the topic, by its field in Redis.
func (c Counts) Counter(field string) int { return max(count(valueOf(c.List("counters"), field)), 0) }

// Counter returns a counter of the group, by its field in Redis.
func (g GroupCounts) Counter(field string) int { return max(count(valueOf(g.List("stats"), field)), 0) }

// valueOf returns the value of a field in a list of fields and values, or nil.
func valueOf(list []any, field string) any {
	for i := 0; i+1 < len(list); i += 2 {
		if list[i] == any(field) {
			return list[i+1]
		}
	}
	return nil
}

// Holder returns the address of the process with a valid scheduling lease, or "".
func (c Counts) Holder() string {
	if next := c.Time("next"); !next.IsZero() && c.Now.After(next.Add(queue.Grace)) {
		return ""
	}
	return c.Text("holder")
}

// Standby returns the address of the process that watches the holder, or "".
func (c Counts) Standby() string {
	if c.Now.After(c.Time("until_ms")) {
		return ""
	}
	return c.Text("standby")
}

// Fault returns the error of the last scheduler that failed since the last promotion, "" for none,
// and when it failed.
func (c Counts) Fault() (at time.Time, fault string) {
	failed, fault, _ := strings.Cut(c.Text("fault"), " ")
	return queue.Instant(failed), fault
}

// Rests tells whether due messages stay where they are, because the topic has a stream and is
// paused.
func (c Counts) Rests() bool {
	return c.Stream && (c.Text("paused") != "" || slices.ContainsFunc(c.Groups, func(g GroupCounts) bool { return g.Text("paused") != "" }))
}

// Has tells whether the topic has the group.
func (c Counts) Has(group string) bool {
	return slices.ContainsFunc(c.Groups, func(g GroupCounts) bool { return g.Name == group })
}

// Subscribed tells whether a subscription waits for messages or for the limit, rests, stands by, or
// holds a message.
func (g GroupCounts) Subscribed() bool {
	return g.Number("waiters")+g.Number("limited")+g.Number("resting")+g.Number("held")+g.Number("standbys") > 0
}

// Active returns what is known about the active subscription.
func (g GroupCounts) Active() queue.Active { return queue.ReadActive(g.Text("active")) }

// Options returns the settings of the group.
func (g GroupCounts) Options() queue.GroupOptions { return queue.ParseGroupOptions(g.Text("options")) }

// OldestDue returns when the first ready message was due; zero: there is none.
func (g GroupCounts) OldestDue() time.Time {
	_, due, _ := strings.Cut(g.Text("first_ready"), ":")
	return queue.Instant(due)
}

// Seen returns when a subscription last showed itself: see LastSeen.
func (g GroupCounts) Seen() time.Time {
	list, fields := g.List("stats"), map[string]string{}
	for _, field := range seenFields {
		fields[field] = queue.Text(valueOf(list, field))
	}
	return LastSeen(fields)
}

// seenFields are the times in the hash stats of a group at which a subscription showed itself.
var seenFields = []string{"seen", "asked", "shown"}

// LastSeen returns when a subscription last claimed, settled, or moved its leases on, by the hash
// stats of its group; or else when the group was made.
func LastSeen(stats map[string]string) (last time.Time) {
	for _, field := range seenFields {
		if at := queue.Instant(stats[field]); at.After(last) {
			last = at
		}
	}
	return last
}

// Settled returns when a subscription last settled messages, as far as they were told; zero: never.
func (g GroupCounts) Settled() time.Time {
	return queue.Instant(queue.Text(valueOf(g.List("stats"), "settled")))
}

// Lateness returns how late all deliveries were.
func (g GroupCounts) Lateness() (l queue.Lateness) {
	for i := range l {
		l[i] = g.Counter(queue.LateField(i))
	}
	return l
}

// Latest returns by how much messages were late at most, and since when: in the hour of now, and in
// the hour before.
func (g GroupCounts) Latest(now time.Time) (most time.Duration, since time.Time) {
	since = now.UTC().Truncate(time.Hour).Add(-time.Hour)
	part := append(strings.Fields(queue.Text(valueOf(g.List("stats"), "latest_ms"))), "", "", "")
	switch hour := queue.Instant(part[1]); {
	case hour.Equal(since.Add(time.Hour)):
		most = max(inMillis(part[0]), inMillis(part[2]))
	case hour.Equal(since):
		most = inMillis(part[0])
	}
	return most, since
}

// Stats reads the counts of the topic and of its groups, by name.
func (t *Topic) Stats(ctx context.Context) (counts Counts, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		counts, err = t.stats(ctx, groups)
		return err
	})
	return counts, err
}

// stats reads the counts of the topic and of some of its groups.
func (t *Topic) stats(ctx context.Context, groups *queue.Groups) (Counts, error) {
	call := t.statsCall(groups)
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		return Counts{}, err
	}
	reply, err := call.Cmd().Slice()
	if err != nil {
		return Counts{}, err
	}
	return ReadCounts(reply, groups)
}

// statsCall returns a call whose reply ReadCounts reads.
func (t *Topic) statsCall(groups *queue.Groups) *queue.Call {
	return t.NewCall(&queue.StatsScript, queue.Target{Groups: groups.Names}, "version", groups.Version)
}

// ReadCounts reads the reply of the stats script about a topic with these groups. It returns
// queue.ErrStale if the groups have changed.
func ReadCounts(reply []any, groups *queue.Groups) (Counts, error) {
	r, err := whole(queue.StatsScript.Read(reply))
	if err != nil {
		return Counts{}, err
	}
	each := r.Each()
	if len(each) != len(groups.Names) {
		return Counts{}, fmt.Errorf("stats: unexpected reply of %d parts about %d groups", len(reply), len(groups.Names))
	}
	fields := []any{r.Part("counters")}
	for _, g := range each {
		fields = append(fields, g.Part("stats"))
	}
	if i := slices.IndexFunc(fields, func(part any) bool { return !isFields(part) }); i >= 0 {
		return Counts{}, fmt.Errorf("stats: unexpected reply: counters are %.64q", fmt.Sprint(fields[i]))
	}
	counts := Counts{Reply: r, Now: r.Time("now"), Stream: groups.Stream}
	if counts.Now.IsZero() {
		return Counts{}, fmt.Errorf("stats: the server says that it is %.64q", r.Text("now"))
	}
	for i, name := range groups.Names {
		counts.Groups = append(counts.Groups, GroupCounts{each[i], name})
	}
	slices.SortFunc(counts.Groups, func(a, b GroupCounts) int { return strings.Compare(a.Name, b.Name) })
	return counts, nil
}
