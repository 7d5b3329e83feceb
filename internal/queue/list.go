package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is where a message is in a group.
type State string

const (
	Pending State = "pending" // waits for its due time; for all groups
	Ready   State = "ready"   // waits for a subscription
	Unack   State = "unack"   // in the hand of one
	Retry   State = "retry"   // waits for its next delivery
	Dead    State = "dead"
)

// Listed is a message as a page has it.
type Listed struct {
	ID         string
	At         time.Time // when it is or was due, its lease ends, or it died
	Options    Options
	Body       []byte // nil if the page is without bodies, or it is lost
	Deliveries int
	Delivered  bool // if it may have been
	Reason     string
}

// Page is some messages of one state, in order of time and ID.
type Page struct {
	Messages []Listed
	Next     string // where the next page begins; "": this is the last
}

// List returns the messages of a state from a cursor on, "" from the beginning: limit of them at most, a
// thousand at most, and about bytes of bodies; none if bytes is zero.
func (t *Topic) List(ctx context.Context, group string, state State, cursor string, limit, bytes int) (Page, error) {
	k := t.keys
	kind, records := "zset", k.Deliveries(group)
	var key string
	switch state {
	case Pending:
		key, records = k.Pending(), k.Options()
	case Ready:
		kind, key = "list", k.Ready(group)
	case Unack:
		key = k.Unack(group)
	case Retry:
		key = k.Retry(group)
	case Dead:
		key = k.Dead(group)
	default:
		return Page{}, fmt.Errorf("%w: there is no state %q", ErrInvalid, state)
	}
	score, id, err := parseCursor(kind, cursor)
	if err != nil {
		return Page{}, err
	}
	limit = min(max(limit, 1), 1000)
	size := ""
	if bytes > 0 {
		size = strconv.Itoa(bytes)
	}
	call := &Call{script: &pageScript, keys: []string{key, k.Messages(), k.Options(), records},
		args: []any{kind, score, id, limit, size}}
	if err := Do(ctx, t.client, call); err != nil {
		return Page{}, err
	}
	reply, err := call.cmd.Slice()
	if err != nil {
		return Page{}, err
	}
	if len(reply)%5 != 1 {
		return Page{}, fmt.Errorf("page: unexpected reply of %d parts", len(reply))
	}
	var page Page
	var last string
	looked := 0
	for part := reply[1:]; len(part) > 0; part = part[5:] {
		id, score := text(part[0]), text(part[1])
		last, looked = score+":"+id, looked+1
		if id == nobody {
			continue
		}
		m := Listed{ID: id, At: instant(score), Options: parseOptions(text(part[3]))}
		if body := text(part[2]); body != "" {
			m.Body = []byte(body)
		}
		if state != Pending {
			var r record
			r.parse(text(part[4]))
			m.Deliveries, m.Delivered, m.Reason = r.count, r.delivered(), r.reason
		}
		page.Messages = append(page.Messages, m)
	}
	if reply[0] == int64(1) {
		page.Next = last
		if kind == "list" {
			from, _ := strconv.Atoi(score)
			page.Next = strconv.Itoa(from + looked)
		}
	}
	return page, nil
}

// parseCursor reads where a page begins.
func parseCursor(kind, cursor string) (score, id string, err error) {
	if cursor == "" {
		return "", "", nil
	}
	score, id, ok := strings.Cut(cursor, ":")
	_, numeric := strconv.ParseFloat(score, 64)
	if numeric != nil || ok != (kind == "zset") {
		return "", "", fmt.Errorf("%w: %q is no cursor of a page of this state", ErrInvalid, cursor)
	}
	return score, id, nil
}

// Bucket is a span of time and how many messages fall due in it.
type Bucket struct {
	From             time.Time
	Pending, Retries int
}

// Upcoming counts the messages that fall due in each of n spans of time, a thousand at most, from an instant
// on, or from now if it is zero: of pending, and the retries of a group.
func (t *Topic) Upcoming(ctx context.Context, group string, from time.Time, width time.Duration, n int) ([]Bucket, error) {
	if _, err := t.Existing(ctx); err != nil {
		return nil, err
	}
	begin := ""
	if !from.IsZero() {
		begin = strconv.FormatInt(from.UnixMilli(), 10)
	}
	call := &Call{script: &upcomingScript, keys: []string{t.keys.Pending(), t.keys.Retry(group)},
		args: []any{begin, millis(width), n}}
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	reply, err := call.cmd.Slice()
	if err != nil || len(reply) != 1+2*n {
		return nil, fmt.Errorf("upcoming: unexpected reply of %d parts: %w", len(reply), err)
	}
	first := instant(text(reply[0]))
	buckets := make([]Bucket, n)
	for i := range buckets {
		buckets[i] = Bucket{
			From:    first.Add(time.Duration(i) * time.Duration(ceilMillis(width)) * time.Millisecond),
			Pending: number(reply[1+2*i]),
			Retries: number(reply[2+2*i]),
		}
	}
	return buckets, nil
}

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
	Lateness, Latest          time.Duration // of all deliveries together, and of the latest
	Seen                      time.Time     // when a subscription last got a message
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
		if len(reply) == 1 {
			return errStale
		}
		const head, each = 11, 19
		if len(reply) != head+each*len(groups.Names) {
			return fmt.Errorf("stats: unexpected reply of %d parts", len(reply))
		}
		stats = Stats{Now: instant(text(reply[1])), Messages: number(reply[2]), Pending: number(reply[3]),
			NextDue: instant(text(reply[4])), DelayIDs: number(reply[5]), Next: instant(text(reply[6])),
			Paused: instant(text(reply[10])), Stream: groups.Stream}
		if stats.Next.IsZero() || !stats.Now.After(stats.Next.Add(grace)) { // else the lease has ended
			stats.Holder = text(reply[7])
		}
		if !stats.Now.After(instant(text(reply[9]))) {
			stats.Standby = text(reply[8])
		}
		for i, name := range groups.Names {
			r := reply[head+each*i:]
			g := GroupStats{Name: name, Ready: number(r[0]), Unack: number(r[2]), NextLease: instant(text(r[3])),
				Retry: number(r[4]), NextRetry: instant(text(r[5])), Dead: number(r[6]), OldestDead: instant(text(r[7])),
				Waiters: number(r[8]), Resting: number(r[9]), Paused: instant(text(r[10])), Ends: instant(text(r[12])),
				Held: number(r[13]), Delivered: number(r[14]), Dropped: number(r[17]), Seen: instant(text(r[18])),
				Lateness: time.Duration(number(r[15])) * time.Millisecond, Latest: time.Duration(number(r[16])) * time.Millisecond}
			if _, due, ok := strings.Cut(text(r[1]), ":"); ok {
				g.OldestDue = instant(due)
			}
			limit, retention, _ := strings.Cut(text(r[11]), " ")
			g.MaxDeliveries, _ = strconv.Atoi(limit)
			g.Retention = -1
			if ms, err := strconv.ParseInt(retention, 10, 64); err == nil && ms >= 0 {
				g.Retention = time.Duration(min(ms, int64(1<<63-1)/1e6)) * time.Millisecond
			}
			stats.Groups = append(stats.Groups, g)
		}
		slices.SortFunc(stats.Groups, func(a, b GroupStats) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	return stats, err
}

// text is a part of a reply that is a text, or "".
func text(part any) string {
	s, _ := part.(string)
	return s
}

// number is a part of a reply that is a count, as a number or a text, or 0.
func number(part any) int {
	switch n := part.(type) {
	case int64:
		return int(n)
	case string:
		f, _ := strconv.ParseFloat(n, 64)
		return int(f)
	}
	return 0
}

// instant is a time in ms, or zero for none.
func instant(ms string) time.Time {
	f, err := strconv.ParseFloat(ms, 64)
	if ms == "" || err != nil {
		return time.Time{}
	}
	return time.UnixMilli(int64(f))
}
