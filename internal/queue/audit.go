package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
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
	FaultRecord    Fault = "record"     // a state without its record of deliveries, or a record without a state
	FaultRefs      Fault = "refs"       // another number of groups need the body than have the message
	FaultDelayID   Fault = "delay id"   // a waiting message does not have its delay ID, or one is told by half
	FaultScheduler Fault = "scheduler"  // the scheduler is not going to look in time
)

// Violation is something that is wrong with a topic.
type Violation struct {
	Fault  Fault
	Group  string // "": none, or more than one
	ID     string // of the message; "": it is not about one
	Detail string

	name    string   // of FaultDelayID
	marks   []mark   // from before ready was looked through
	version string   // of the set of groups that they are of
	absent  []string // groups in whose ready it was not found
	present []string // groups in whose ready it was
	mending bool     // whether Mend may be able to do something
}

// Audit is what a look at all of a topic brought.
type Audit struct {
	Violations  []Violation
	Messages    int // looked at
	Unconfirmed int // suspicions that could not be confirmed, because too much was going on
}

// audit is an audit under way.
type audit struct {
	Audit
	topic  *Topic
	groups *Groups
	seen   map[string]int // violations that are known, and where they are
	walked bool           // ready was looked through
}

const (
	// auditPage is how many messages one call looks at, times groups.
	auditPage = 500
	// auditRound is how many messages are held in mind that may be ready, or lost.
	auditRound = 100_000
)

// Audit looks for everything that is wrong, in calls that each take about a millisecond, on a topic that may
// be in use. What it reports was so at one time, not the sum of what was read at different times. Removals of
// groups that somebody has begun and not finished are finished first.
func (t *Topic) Audit(ctx context.Context) (Audit, error) {
	for range 5 {
		groups, err := t.existing(ctx)
		if err != nil {
			return Audit{}, err
		}
		a := &audit{topic: t, groups: groups, seen: map[string]int{}}
		if err = a.run(ctx); err != errStale {
			return a.Audit, err
		}
		t.forget(groups)
	}
	return Audit{}, errors.New("the set of groups changes too fast")
}

func (a *audit) run(ctx context.Context) error {
	removing, err := a.topic.removing(ctx)
	if err != nil {
		return err
	}
	whole, err := a.keys(ctx, removing)
	if err != nil || !whole {
		return err
	}
	// What a group that is out of the set still holds would look as if nobody had it. None begins to be removed
	// after this without a change of the set.
	if err := a.topic.finishRemovals(ctx, removing); err != nil {
		return err
	}
	for _, look := range []func(context.Context) error{a.bodies, a.indexes, a.delayIDs, a.scheduler} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) report(v Violation) {
	key := string(v.Fault) + "\x00" + v.Group + "\x00" + v.ID + "\x00" + v.name
	if v.ID == "" && v.name == "" {
		key += v.Detail
	}
	at, known := a.seen[key]
	switch {
	case !known:
		a.seen[key] = len(a.Violations)
		a.Violations = append(a.Violations, v)
	case v.Fault == FaultRefs && len(v.present) > len(a.Violations[at].present):
		a.Violations[at] = v // which knows more
	}
}

// keys checks types and that nothing expires. With a key of a wrong type there is nothing more to look at.
func (a *audit) keys(ctx context.Context, removing []string) (whole bool, err error) {
	k := a.topic.keys
	types := map[string]string{k.Meta(): "hash", k.Groups(): "hash", k.Messages(): "hash", k.Options(): "hash",
		k.Refs(): "hash", k.Scheduler(): "hash", k.Names(): "hash", k.Paused(): "hash",
		k.Pending(): "zset", k.Idle(): "zset", k.Taken(): "zset"}
	for _, g := range slices.Concat(a.groups.Names, removing) {
		for _, key := range []string{k.Leases(g), k.Deliveries(g), k.Stats(g)} {
			types[key] = "hash"
		}
		for _, key := range []string{k.Unack(g), k.Retry(g), k.Dead(g), k.Waiters(g), k.Resting(g)} {
			types[key] = "zset"
		}
		types[k.Ready(g)] = "list"
	}
	listed, err := a.topic.client.SIsMember(ctx, Registry(a.topic.prefix), a.topic.Name).Result()
	if err != nil {
		return false, err
	}
	if !listed {
		a.report(Violation{Fault: FaultRegistry, Detail: "the topic is not in the registry", mending: true})
	}
	names := make([]string, 0, len(types))
	for key := range types {
		names = append(names, key)
	}
	slices.Sort(names)
	whole = true
	for part := range slices.Chunk(names, 500) {
		p := a.topic.client.Pipeline()
		var found []*redis.StatusCmd
		var ends []*redis.DurationCmd
		for _, key := range part {
			found = append(found, p.Type(ctx, key))
			ends = append(ends, p.PTTL(ctx, key))
		}
		if _, err := p.Exec(ctx); err != nil {
			return false, err
		}
		for i, key := range part {
			if typ := found[i].Val(); typ != "none" && typ != types[key] {
				whole = false
				a.report(Violation{Fault: FaultKey, Detail: fmt.Sprintf("%s is a %s, not a %s", key, typ, types[key])})
			}
			if ends[i].Val() >= 0 {
				a.report(Violation{Fault: FaultKey, name: key, Detail: key + " expires", mending: true})
			}
		}
	}
	return whole, nil
}

// candidate is a message whose indexes do not say where it is, so that it should be ready.
type candidate struct {
	seen map[int]bool // groups in whose ready it was found
}

// bodies looks at every body, and through ready for those that should be there.
func (a *audit) bodies(ctx context.Context) error {
	var marks []mark
	candidates := map[string]*candidate{}
	cursor, err := "0", error(nil)
	for {
		var ids []string
		if cursor, ids, err = a.scan(ctx, a.topic.keys.Messages(), "HSCAN", cursor); err != nil {
			return err
		}
		a.Messages += len(ids)
		for part := range slices.Chunk(ids, a.page()) {
			found, fresh, now, err := a.topic.inspect(ctx, a.groups, inspection{ids: part})
			if err != nil {
				return err
			}
			if marks == nil {
				marks = fresh
			}
			for i := range found {
				a.judge(&found[i], now)
				if found[i].there && found[i].due == "" && !a.settled(&found[i]) {
					candidates[found[i].id] = &candidate{seen: map[int]bool{}}
				}
			}
		}
		if len(candidates) >= auditRound || cursor == "0" {
			if err := a.confirm(ctx, candidates, marks); err != nil {
				return err
			}
			marks = nil
			clear(candidates)
		}
		if cursor == "0" {
			return nil
		}
	}
}

// settled tells that the indexes account for a message, so that ready need not be looked through for it.
func (a *audit) settled(f *facts) bool {
	if f.holders() != max(f.refs, 1) {
		return false
	}
	for i := range f.groups {
		if !f.groups[i].held() && f.groups[i].record != "" {
			return false
		}
	}
	return true
}

// confirm looks through ready for the candidates, and reports those that are not there.
func (a *audit) confirm(ctx context.Context, candidates map[string]*candidate, marks []mark) error {
	for g := range a.groups.Names {
		if err := a.walk(ctx, g, candidates, marks != nil); err != nil {
			return err
		}
	}
	a.walked = true
	var doubtful []string
	for id, c := range candidates {
		if len(c.seen) != 1 || len(a.groups.Names) > 1 {
			doubtful = append(doubtful, id)
		}
	}
	slices.Sort(doubtful)
	for part := range slices.Chunk(doubtful, a.page()) {
		found, after, _, err := a.topic.inspect(ctx, a.groups, inspection{ids: part, marks: marks})
		if err != nil {
			return err
		}
		for i := range found {
			a.convict(&found[i], candidates[found[i].id], marks, after)
		}
	}
	return nil
}

// walk goes through a list of ready from the right to the left. Places counted from the right only grow, by
// what comes in behind, so nothing that was in the list is passed over; some may be seen twice. What is put
// back in front meanwhile is known by the marks.
//
// What has too few groups counted, and is ready besides, becomes a candidate if more is set.
func (a *audit) walk(ctx context.Context, group int, candidates map[string]*candidate, more bool) error {
	size := a.page()
	if a.walked {
		size = 1000
	}
	for from := 0; ; from += size {
		var entries []string
		if a.walked { // only to see what is there
			var err error
			key := a.topic.keys.Ready(a.groups.Names[group])
			if entries, err = a.topic.client.LRange(ctx, key, int64(-from-size), int64(-from-1)).Result(); err != nil {
				return err
			}
		} else {
			found, marks, now, err := a.topic.inspect(ctx, a.groups, inspection{source: group + 1, from: -from - size, to: -from - 1})
			if err != nil {
				return err
			}
			for i := range found {
				entries = append(entries, found[i].entry)
				if a.judgeReady(&found[i], group, marks, now) && more && candidates[found[i].id] == nil {
					candidates[found[i].id] = &candidate{seen: map[int]bool{}}
				}
			}
		}
		for _, entry := range entries {
			id := entry[:min(IDLength, len(entry))]
			if c := candidates[id]; c != nil {
				c.seen[group] = true
			}
		}
		if len(entries) < size {
			return nil
		}
	}
}

// convict decides about a message that ready was looked through for.
func (a *audit) convict(f *facts, c *candidate, before, after []mark) {
	if !f.there || f.due != "" {
		return // it went its way meanwhile
	}
	sure, still := true, true
	var absent, present []string
	ready := 0
	for g := range f.groups {
		if f.groups[g].recent || c.seen[g] {
			if !f.groups[g].held() {
				ready++
				present = append(present, a.groups.Names[g])
			}
		} else if after[g].sure {
			absent = append(absent, a.groups.Names[g])
		}
		sure = sure && after[g].sure
		still = still && after[g].returned == before[g].returned && after[g].last == before[g].last && after[g].length == before[g].length
	}
	needed, holders := max(f.refs, 1), f.holders()
	v := Violation{ID: f.id, marks: before, version: a.groups.Version, absent: absent, present: present, mending: true}
	switch {
	case holders+ready < needed && !sure:
		a.Unconfirmed++
	case holders+ready == 0:
		v.Fault, v.Detail = FaultLost, "its body is there, and it is in no state of any group"
		a.report(v)
	case holders+ready < needed:
		v.Fault, v.mending = FaultRefs, false
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, holders+ready)
		a.report(v)
	case holders+ready > needed && still:
		v.Fault = FaultRefs
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, holders+ready)
		a.report(v)
	}
	for g, in := range f.groups {
		if in.record != "" && !in.held() && !in.recent && !c.seen[g] && after[g].sure && holders+ready > 0 {
			v := v
			v.Fault, v.Group, v.mending = FaultRecord, a.groups.Names[g], true
			v.Detail = "it has a record of deliveries and no state"
			a.report(v)
		}
	}
}

// judge reports what is wrong with a message for sure, wherever it was found.
func (a *audit) judge(f *facts, now time.Time) {
	report := func(fault Fault, group, format string, args ...any) {
		a.report(Violation{Fault: fault, Group: group, ID: f.id, Detail: fmt.Sprintf(format, args...), mending: true})
	}
	if !f.there {
		if f.due != "" {
			report(FaultNoBody, "", "it is in pending without a body")
		}
		for i, g := range f.groups {
			if g.held() || g.lease != "" || g.record != "" {
				report(FaultNoBody, a.groups.Names[i], "it is in %s without a body", g.places())
			}
		}
		if f.options != "" || f.refs >= 0 {
			report(FaultNoBody, "", "it has options or refs without a body")
		}
		return
	}
	for i, g := range f.groups {
		name := a.groups.Names[i]
		switch {
		case g.unack != "" && g.lease == "":
			report(FaultLease, name, "it is in unack without a lease")
		case g.unack == "" && g.lease != "":
			report(FaultLease, name, "it has a lease and is not in unack")
		}
		if places := g.states(); len(places) > 1 {
			report(FaultStates, name, "it is in %s", strings.Join(places, " and "))
		}
		if (g.retry != "" || g.dead != "") && g.record == "" {
			report(FaultRecord, name, "it is in %s without a record of deliveries", g.places())
		}
		if f.due != "" && (g.held() || g.lease != "") {
			a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in pending and in " + g.places()})
		}
	}
	if holders := f.holders(); f.due == "" && holders > max(f.refs, 1) {
		report(FaultRefs, "", "refs says that %d groups need it, and %d have it", max(f.refs, 1), holders)
	}
	if name := parseOptions(f.options).DelayID; name != "" && f.due != "" && instant(f.due).After(now) {
		switch {
		case f.owner == "" || (f.owner == f.id && f.free == ""):
			report(FaultDelayID, "", "it waits, and its delay ID %q is free", name)
		case f.owner != f.id:
			a.report(Violation{Fault: FaultDelayID, ID: f.id, Detail: fmt.Sprintf("it waits, and its delay ID %q is that of message %s", name, f.owner)})
		}
	}
}

// judgeReady reports what is wrong with an entry of ready for sure, and tells whether fewer groups are counted
// than have the message. The marks are of the same step.
func (a *audit) judgeReady(f *facts, group int, marks []mark, now time.Time) (few bool) {
	a.judge(f, now)
	name := a.groups.Names[group]
	switch g := f.groups[group]; {
	case len(f.id) != IDLength || len(f.entry) <= IDLength:
		a.report(Violation{Fault: FaultKey, Group: name, Detail: fmt.Sprintf("ready has an entry %.64q, which is not id:due", f.entry)})
	case !f.there: // the claim that comes to it drops it
		a.report(Violation{Fault: FaultNoBody, Group: name, ID: f.id, Detail: "it is in ready without a body", mending: true})
	case g.held():
		a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in ready and in " + g.places()})
	case f.due != "":
		a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in ready and in pending"})
	case f.holders()+1 > max(f.refs, 1):
		a.report(Violation{Fault: FaultRefs, ID: f.id, marks: marks, version: a.groups.Version, present: []string{name}, mending: true,
			Detail: fmt.Sprintf("refs says that %d groups need it, and %d have it", max(f.refs, 1), f.holders()+1)})
		return true
	}
	return false
}

func (f *groupFacts) states() (places []string) {
	for _, place := range []struct{ name, found string }{{"unack", f.unack}, {"retry", f.retry}, {"dead", f.dead}} {
		if place.found != "" {
			places = append(places, place.name)
		}
	}
	return places
}

// places are the keys of a group that have the message.
func (f *groupFacts) places() string {
	places := f.states()
	if f.lease != "" {
		places = append(places, "leases")
	}
	if f.record != "" {
		places = append(places, "deliveries")
	}
	return strings.Join(places, ", ")
}

// indexes looks at every message that an index has.
func (a *audit) indexes(ctx context.Context) error {
	k := a.topic.keys
	keys := []struct{ key, kind string }{{k.Pending(), "ZSCAN"}, {k.Options(), "HSCAN"}, {k.Refs(), "HSCAN"}}
	for _, g := range a.groups.Names {
		for _, key := range []string{k.Unack(g), k.Retry(g), k.Dead(g)} {
			keys = append(keys, struct{ key, kind string }{key, "ZSCAN"})
		}
		for _, key := range []string{k.Leases(g), k.Deliveries(g)} {
			keys = append(keys, struct{ key, kind string }{key, "HSCAN"})
		}
	}
	for _, index := range keys {
		for cursor := "0"; ; {
			next, ids, err := a.scan(ctx, index.key, index.kind, cursor)
			if err != nil {
				return err
			}
			for part := range slices.Chunk(ids, a.page()) {
				found, _, now, err := a.topic.inspect(ctx, a.groups, inspection{ids: part})
				if err != nil {
					return err
				}
				for i := range found {
					a.judge(&found[i], now)
				}
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
	}
	return nil
}

// delayIDs looks for those that are told by half.
func (a *audit) delayIDs(ctx context.Context) error {
	k := a.topic.keys
	for _, index := range []struct{ key, kind string }{{k.Names(), "HSCAN"}, {k.Taken(), "ZSCAN"}} {
		for cursor := "0"; ; {
			next, names, err := a.scan(ctx, index.key, index.kind, cursor)
			if err != nil {
				return err
			}
			if err := a.halves(ctx, names); err != nil {
				return err
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
	}
	return nil
}

// halves reports those of the delay IDs that are in one of the two keys only, at one time.
func (a *audit) halves(ctx context.Context, names []string) error {
	k := a.topic.keys
	owners, frees := make([]*redis.StringCmd, len(names)), make([]*redis.FloatCmd, len(names))
	_, err := a.topic.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			owners[i], frees[i] = p.HGet(ctx, k.Names(), name), p.ZScore(ctx, k.Taken(), name)
		}
		return nil
	})
	if err != nil && err != redis.Nil {
		return err
	}
	for i, name := range names {
		where := ""
		switch {
		case owners[i].Err() == nil && frees[i].Err() == redis.Nil:
			where = "in names and not in taken"
		case owners[i].Err() == redis.Nil && frees[i].Err() == nil:
			where = "in taken and not in names"
		default:
			continue
		}
		a.report(Violation{Fault: FaultDelayID, name: name, mending: true,
			Detail: fmt.Sprintf("delay ID %q is %s", decodeName(name), where)})
	}
	return nil
}

// scheduler checks that it is going to look in time.
func (a *audit) scheduler(ctx context.Context) error {
	stats, err := a.topic.Stats(ctx)
	if err != nil {
		return err
	}
	if len(stats.Groups) == 0 {
		return nil
	}
	event, what := stats.NextDue, "a message is due"
	for _, g := range stats.Groups {
		for at, is := range map[time.Time]string{g.NextRetry: "a retry is due", g.NextLease: "a lease ends"} {
			if !at.IsZero() && (event.IsZero() || at.Before(event)) {
				event, what = at, is
			}
		}
	}
	if event.IsZero() {
		return nil
	}
	v := Violation{Fault: FaultScheduler, mending: true}
	switch {
	case stats.Next.IsZero():
		v.Detail = fmt.Sprintf("it is not going to look, and %s at %s", what, event.UTC().Format(time.RFC3339Nano))
		a.report(v)
	case stats.Next.After(event) && stats.Next.After(stats.Now):
		v.Detail = fmt.Sprintf("it is going to look %v after %s, at %s", stats.Next.Sub(event), what, event.UTC().Format(time.RFC3339Nano))
		a.report(v)
	}
	return nil
}

// page is how many messages one call looks at.
func (a *audit) page() int { return max(1, auditPage/(1+len(a.groups.Names))) }

func (a *audit) scan(ctx context.Context, key, kind, cursor string) (next string, ids []string, err error) {
	call := &Call{script: &scanScript, keys: []string{key}, args: []any{kind, cursor, auditPage}}
	if err := Do(ctx, a.topic.client, call); err != nil {
		return "", nil, err
	}
	reply, err := call.cmd.StringSlice()
	if err != nil || len(reply) == 0 {
		return "", nil, fmt.Errorf("scan: unexpected reply: %w", err)
	}
	return reply[0], reply[1:], nil
}
