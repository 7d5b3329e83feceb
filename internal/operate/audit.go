package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Fault is a kind of violation.
type Fault string

const (
	FaultKey       Fault = "key"        // a key is of a wrong type, or expires
	FaultRegistry  Fault = "registry"   // the topic is not in the registry
	FaultNoBody    Fault = "no body"    // an index has a message whose body is gone
	FaultLost      Fault = "lost"       // a body is there, and no index has it
	FaultLease     Fault = "lease"      // a deadline without a lease, or a lease without a deadline
	FaultStates    Fault = "two states" // a message is in two states of a group
	FaultRepeated  Fault = "repeated"   // a message is more than once in ready of a group
	FaultRecord    Fault = "record"     // a state lacks its record, or a record its state
	FaultRefs      Fault = "refs"       // refs does not say how many groups have the message
	FaultDelayID   Fault = "delay id"   // a waiting message or one of two keys lacks a delay ID
	FaultScheduler Fault = "scheduler"  // the scheduler will not look in time
)

// Faults returns all kinds of violations.
func Faults() []Fault {
	return []Fault{FaultKey, FaultRegistry, FaultNoBody, FaultLost, FaultLease, FaultStates, FaultRepeated, FaultRecord, FaultRefs, FaultDelayID, FaultScheduler}
}

// Violation is one thing that is wrong with a topic.
type Violation struct {
	Fault  Fault
	Group  string // "": no group, or several
	ID     string // of the message; "": none
	Detail string

	name    string // tells two violations apart that are else equal: a delay ID, a key, or a number
	first   int    // places in ready, with FaultRepeated
	second  int
	marks   []mark   // of all groups, taken before the search through ready
	version string   // of the set of groups that the marks are of
	absent  []string // groups whose ready did not have the message
	present []string // groups whose ready had the message
}

// Audit is the result of a check of a whole topic.
type Audit struct {
	Violations  []Violation
	Messages    int // that were checked
	Unconfirmed int // messages that could not be judged, because they moved too often
}

// audit is an audit under way.
type audit struct {
	Audit
	topic   *Topic
	groups  *queue.Groups
	all     []string        // the groups, the window, and copies that new groups make of it
	looked  []func(n int)   // are told how many entries were read
	there   map[string]bool // keys that existed at the beginning
	tallies tallies
	loose   []string        // messages with a record of deliveries in a group that seems not to have them
	seen    map[string]bool // the keys of Violations
}

const (
	// auditPage is how many messages, times groups, one call looks at.
	auditPage = 500
	// auditGroups is how many groups one call looks at, at most.
	auditGroups = 40
	// auditBytes is how many bytes of bodies one call reads to find IDs.
	auditBytes = 1 << 20
)

// Audit looks for every violation, in calls that each take about a millisecond. The topic may be in
// use. Each violation was seen at one time, or in reads between which it cannot have come or gone.
// A message that moves meanwhile may hide its violation. Audit first finishes removals of groups
// that were begun and not finished.
//
// The functions looked are called with the number of entries that each step has read.
//
// The number of calls grows with the number of groups, plus that of entries in all keys of the
// topic. Only a message whose number of groups seems wrong is looked for in each group. ErrChanging
// means that the set of groups changed five times meanwhile.
func (t *Topic) Audit(ctx context.Context, looked ...func(n int)) (Audit, error) {
	for range 5 {
		groups, err := t.Existing(ctx)
		if err != nil {
			return Audit{}, err
		}
		a := &audit{topic: t, groups: groups, all: groups.All(), looked: looked, there: map[string]bool{}, tallies: tallies{}, seen: map[string]bool{}}
		if err = a.run(ctx); err != queue.ErrStale {
			return a.Audit, err
		}
		t.Forget(groups)
	}
	return Audit{}, fmt.Errorf("topic %q: %w", t.Name, ErrChanging)
}

func (a *audit) run(ctx context.Context) error {
	removing, err := a.topic.Removing(ctx)
	if err != nil {
		return err
	}
	whole, err := a.keys(ctx, removing)
	if err != nil || !whole {
		return err
	}
	if len(removing) > 0 {
		if _, err := new(rights.Permits).Try(ctx, a.topic.Topic, rights.Removing); err != nil {
			return err
		}
	}
	// A group that is out of the set may still hold messages, which would look lost. After this no
	// removal begins without a change of the set.
	if err := a.topic.FinishRemovals(ctx, removing); err != nil {
		return err
	}
	if len(removing) > 0 { // copies that are being made stay
		if removing, err = a.topic.Removing(ctx); err != nil {
			return err
		}
		a.all = slices.Concat(a.all, removing)
	}
	for _, look := range []func(context.Context) error{a.messages, a.eachGroup, a.confirm, a.delayIDs, a.scheduler} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(a.Violations, func(a, b Violation) int { return strings.Compare(a.ID, b.ID) })
	return nil
}

// tell says that entries were read.
func (a *audit) tell(n int) {
	for _, looked := range a.looked {
		looked(n)
	}
}

func (a *audit) report(v Violation) {
	if !a.seen[v.key()] {
		a.seen[v.key()] = true
		a.Violations = append(a.Violations, v)
	}
}

// key is the same for two reports of one violation.
func (v *Violation) key() string {
	key := string(v.Fault) + "\x00" + v.Group + "\x00" + v.ID + "\x00" + v.name
	if v.ID == "" && v.name == "" {
		key += v.Detail
	}
	return key
}

// keys notes which keys exist, and checks their types, and that none expires but streams. If a type
// is wrong, nothing else can be checked, and whole is false.
func (a *audit) keys(ctx context.Context, removing []string) (whole bool, err error) {
	all := a.topic.Keys().All(slices.Concat(a.all, removing))
	if a.groups.Stream {
		all = append(all, a.topic.Name)
	}
	listed, err := a.topic.Listed(ctx)
	if err != nil {
		return false, err
	}
	if !listed {
		a.report(Violation{Fault: FaultRegistry, Detail: "the topic is not in the registry"})
	}
	whole = true
	for part := range slices.Chunk(all, 500) {
		var found []*redis.StatusCmd
		var ends []*redis.DurationCmd
		err := a.topic.Client().Call(func(c redis.UniversalClient) error {
			p := c.Pipeline()
			for _, key := range part {
				found = append(found, p.Type(ctx, key))
				ends = append(ends, p.PTTL(ctx, key))
			}
			_, err := p.Exec(ctx)
			return err
		})
		if err != nil {
			return false, err
		}
		for i, key := range part {
			typ := found[i].Val()
			a.there[key] = typ != "none"
			want, expires := queue.TypeOf(key)
			if typ != "none" && typ != want {
				whole = whole && key == a.topic.Name // the rest needs no stream
				a.report(Violation{Fault: FaultKey, Detail: fmt.Sprintf("%s is a %s, not a %s", key, typ, want)})
			}
			if ends[i].Val() >= 0 && !expires {
				a.report(Violation{Fault: FaultKey, name: key, Detail: key + " expires"})
			}
		}
	}
	return whole, nil
}

// messages checks every message by itself, and begins the tallies.
func (a *audit) messages(ctx context.Context) error {
	k, none := a.topic.Keys(), a.part(0, 0)
	err := a.scan(ctx, []index{hash(k.Messages())}, func(ids []string) error {
		a.Messages += len(ids)
		return a.each(ctx, none, ids, func(f *facts, now time.Time) {
			a.judge(f, none.Names, now)
			if f.there && f.due == "" {
				a.tallies.begin(f)
			}
		})
	})
	if err != nil {
		return err
	}
	return a.scan(ctx, []index{zset(k.Pending()), hash(k.Options()), hash(k.Refs())}, func(ids []string) error {
		return a.each(ctx, none, ids, func(f *facts, now time.Time) { a.judge(f, none.Names, now) })
	})
}

// eachGroup checks all messages that the keys of each group name.
func (a *audit) eachGroup(ctx context.Context) error {
	k := a.topic.Keys()
	for g, name := range a.all {
		one := a.part(g, g+1)
		var loose []string
		indexes := []index{zset(k.Unack(name)), zset(k.Retry(name)), zset(k.Dead(name)), hash(k.Leases(name)),
			hash(k.Deliveries(name)), hash(k.Suspects(name))}
		err := a.scan(ctx, indexes, func(ids []string) error {
			return a.each(ctx, one, ids, func(f *facts, now time.Time) {
				a.judge(f, one.Names, now)
				switch in := f.groups[0]; {
				case in.held():
					a.tallies.held(f.id, g)
				case in.record != "":
					loose = append(loose, f.id)
				}
			})
		})
		if err == nil && a.there[k.Ready(name)] {
			err = a.walk(ctx, g)
		}
		if err != nil {
			return err
		}
		for _, id := range loose {
			if !a.tallies.wasReady(id, g) {
				a.loose = append(a.loose, id)
			}
		}
	}
	return nil
}

// each calls f with the facts about messages in a part of the groups.
func (a *audit) each(ctx context.Context, part *queue.Groups, ids []string, f func(*facts, time.Time)) error {
	for some := range slices.Chunk(ids, page(part)) {
		found, _, now, err := a.topic.inspect(ctx, part, inspection{ids: some})
		if err != nil {
			return err
		}
		for i := range found {
			f(&found[i], now)
		}
	}
	return nil
}

// delayIDs checks every delay ID that is taken.
func (a *audit) delayIDs(ctx context.Context) error {
	k := a.topic.Keys()
	return a.scan(ctx, []index{hash(k.Names()), zset(k.Taken())}, func(names []string) error { return a.halves(ctx, names) })
}

// halves reports the delay IDs that only one of the two keys has, both read at one time.
func (a *audit) halves(ctx context.Context, names []string) error {
	d := a.topic.Draft(&queue.HalvesScript, queue.Target{})
	for _, name := range names {
		d.Each("name", "name", name)
	}
	reply, err := run(ctx, a.topic, (*redis.Cmd).StringSlice, d.Call())
	if err != nil {
		return err
	}
	if len(reply) != len(names) {
		return fmt.Errorf("halves: unexpected reply of %d parts about %d delay IDs", len(reply), len(names))
	}
	for i, name := range names {
		if reply[i] != "" {
			a.report(Violation{Fault: FaultDelayID, name: name, Detail: fmt.Sprintf("delay ID %q is only in %s", queue.DecodeName(name), reply[i])})
		}
	}
	return nil
}

// scheduler checks that the scheduler will look in time, for some groups at a time.
func (a *audit) scheduler(ctx context.Context) error {
	for _, part := range partsOf(a.groups, a.groups.Names) {
		counts, err := a.topic.stats(ctx, part)
		if err != nil {
			return err
		}
		if v := isLate(counts); v != "" {
			a.report(Violation{Fault: FaultScheduler, Detail: v})
			return nil
		}
	}
	return nil
}

// isLate says by how much the scheduler will miss the first event of the groups, or returns "".
func isLate(c Counts) string {
	if len(c.Groups) == 0 || c.Rests() {
		return ""
	}
	event, what := c.Time("next_due"), "a message is due"
	for _, g := range c.Groups {
		for at, is := range map[time.Time]string{g.Time("first_retry"): "a retry is due", g.Time("first_deadline"): "a lease ends",
			g.Active().Ends: "the active subscription has to claim"} {
			if !at.IsZero() && (event.IsZero() || at.Before(event)) {
				event, what = at, is
			}
		}
	}
	when, next := event.UTC().Format(time.RFC3339Nano), c.Time("next")
	switch {
	case event.IsZero():
		return ""
	case next.IsZero():
		return fmt.Sprintf("it is not going to look, and %s at %s", what, when)
	case next.After(event) && next.After(c.Now):
		return fmt.Sprintf("it is going to look %v after %s, at %s", next.Sub(event), what, when)
	}
	return ""
}

// part returns some of the groups, by their numbers.
func (a *audit) part(from, to int) *queue.Groups { return partOf(a.groups, a.all[from:to]) }

// parts returns all groups in parts that one call may look at. A topic without groups has one part.
func (a *audit) parts() []*queue.Groups { return partsOf(a.groups, a.all) }

// partOf returns a set that has some names only.
func partOf(groups *queue.Groups, names []string) *queue.Groups {
	return &queue.Groups{Version: groups.Version, Names: names, Stream: groups.Stream}
}

// partsOf returns the names in parts that one call may look at. Without names there is one part.
func partsOf(groups *queue.Groups, names []string) (all []*queue.Groups) {
	for from := 0; from == 0 || from < len(names); from += auditGroups {
		all = append(all, partOf(groups, names[from:min(from+auditGroups, len(names))]))
	}
	return all
}

// page returns how many messages one call looks at, in a part of the groups.
func page(part *queue.Groups) int { return max(1, auditPage/(1+len(part.Names))) }

// index is a key that has an entry for each of some IDs, and the command that scans it.
type index struct{ key, command string }

func hash(key string) index { return index{key, "HSCAN"} }

func zset(key string) index { return index{key, "ZSCAN"} }

// scan calls f with all IDs of the indexes, some at a time. An ID may come twice. It passes over
// keys that did not exist at the beginning.
func (a *audit) scan(ctx context.Context, indexes []index, f func(ids []string) error) error {
	for _, i := range indexes {
		if !a.there[i.key] {
			continue
		}
		for cursor := "0"; ; {
			reply, err := run(ctx, a.topic, (*redis.Cmd).Slice, a.topic.NewCall(&queue.ScanScript, queue.Target{}, "key", i.key,
				"kind", i.command, "cursor", cursor, "count", auditPage, "bytes", auditBytes))
			if err != nil {
				return err
			}
			var ids []string
			if cursor, ids, err = readScan(reply); err != nil {
				return err
			}
			if len(ids) > 0 { // a call may return none before the end
				if err := f(ids); err != nil {
					return err
				}
				a.tell(len(ids))
			}
			if cursor == "0" {
				break
			}
		}
	}
	return nil
}
