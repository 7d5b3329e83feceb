package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// facts are all that the indexes say about a message at one time.
type facts struct {
	id      string
	entry   string // of ready, if it was found there
	there   bool   // its body
	body    string // if it was asked for
	options string
	refs    int // -1: none
	due     string
	owner   string // of its delay ID
	free    string // when the delay ID is free
	groups  []groupFacts
}

type groupFacts struct {
	unack, lease, retry, dead, record string // "": none
	recent                            bool   // it came into ready since the marks were taken
}

// held tells that the group has it in a state other than ready.
func (f *groupFacts) held() bool { return f.unack != "" || f.retry != "" || f.dead != "" }

// holders is the number of groups that have it in a state other than ready.
func (f *facts) holders() (n int) {
	for i := range f.groups {
		if f.groups[i].held() {
			n++
		}
	}
	return n
}

// mark is a place in the list of a group's ready messages at one time.
type mark struct {
	returned string // how many entries were put back in front so far
	last     string // entry
	length   int
	sure     bool // all that came since the marks given were taken was looked at
}

// unchanged tells that all that the list had at an earlier mark is there, and nothing else was meanwhile. Of an empty
// list that cannot be told: what came may have gone.
func (m mark) unchanged(since mark) bool {
	return m.length > 0 && m.length == since.length && m.last == since.last && m.returned == since.returned
}

// inspection is a call of inspect: about some ids, or those of a part of a list.
type inspection struct {
	ids      []string
	bodies   bool
	source   int // 1 and up: the group whose list it is
	from, to int
	marks    []mark // of an earlier inspection, to tell what came since
}

// inspect reads the facts. The marks of this time are returned too.
func (t *Topic) inspect(ctx context.Context, groups *Groups, q inspection) (found []facts, marks []mark, now time.Time, err error) {
	args := []any{groups.Version, flag(q.bodies), q.source, q.from, q.to, flag(q.marks != nil)}
	for _, m := range q.marks {
		args = append(args, m.returned, m.last)
	}
	for _, id := range q.ids {
		args = append(args, id)
	}
	call := &Call{script: &inspectScript, keys: t.inspectKeys(groups), args: args}
	if err := Do(ctx, t.client, call); err != nil {
		return nil, nil, now, err
	}
	reply, err := call.cmd.Slice()
	if err != nil {
		return nil, nil, now, err
	}
	if len(reply) == 1 {
		return nil, nil, now, errStale
	}
	if len(reply) < 3 {
		return nil, nil, now, fmt.Errorf("inspect: unexpected reply of %d parts", len(reply))
	}
	list, _ := reply[2].([]any)
	for _, part := range list {
		m, _ := part.([]any)
		if len(m) != 4 {
			return nil, nil, now, fmt.Errorf("inspect: unexpected mark %v", part)
		}
		marks = append(marks, mark{text(m[0]), text(m[2]), count(m[1]), m[3] == int64(1)})
	}
	for _, part := range reply[3:] {
		f, _ := part.([]any)
		if len(f) != 7+6*len(groups.Names) {
			return nil, nil, now, fmt.Errorf("inspect: unexpected facts %v", part)
		}
		found = append(found, parseFacts(f))
	}
	return found, marks, instant(text(reply[1])), nil
}

func parseFacts(part []any) facts {
	entry := text(part[0])
	f := facts{id: entry[:min(IDLength, len(entry))], entry: entry, body: text(part[1]), there: part[1] != nil,
		options: text(part[2]), refs: -1, due: text(part[4]), owner: text(part[5]), free: text(part[6])}
	if part[3] != nil {
		f.refs = count(part[3])
	}
	for g := part[7:]; len(g) > 0; g = g[6:] {
		f.groups = append(f.groups, groupFacts{unack: text(g[0]), lease: text(g[1]), retry: text(g[2]),
			dead: text(g[3]), record: text(g[4]), recent: g[5] != nil})
	}
	return f
}

func (t *Topic) inspectKeys(groups *Groups) []string {
	k := t.keys
	keys := []string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Names(), k.Taken()}
	for _, g := range groups.Names {
		keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Dead(g), k.Deliveries(g), k.Stats(g))
	}
	return keys
}

// Found is a message and where it is.
type Found struct {
	ID      string
	Options Options
	Body    []byte
	Due     time.Time // of pending; zero: it is in groups
	Groups  []FoundIn
}

// FoundIn is where a message is in one group. State is "" if it may be ready, or may not be in the group any
// more: which of the two it is, only a look at all that is ready could tell.
type FoundIn struct {
	Group      string
	State      State
	At         time.Time
	Deliveries int
	Delivered  bool // if it may have been
	Reason     string
}

// Find looks for one message. ErrNotFound if there is none.
func (t *Topic) Find(ctx context.Context, ref Ref) (Found, error) {
	if ref.ID != "" {
		return t.find(ctx, ref, ref.ID)
	}
	for before := ""; ; {
		id, err := t.client.HGet(ctx, t.keys.Names(), encodeName(ref.DelayID)).Result()
		if err != nil && err != redis.Nil {
			return Found{}, forbidden(err)
		}
		found, err := t.find(ctx, ref, id)
		if !errors.Is(err, ErrNotFound) || id == before {
			return found, err
		}
		before = id // it may have been replaced meanwhile
	}
}

// find looks for the message with an id, which is to have the delay ID that ref may name.
func (t *Topic) find(ctx context.Context, ref Ref, id string) (found Found, err error) {
	err = t.withExisting(ctx, func(groups *Groups) error {
		// Before, as none begins to be removed after this without a change of the set.
		removing, err := t.removing(ctx)
		if err != nil {
			return forbidden(err)
		}
		all, _, now, err := t.inspect(ctx, groups, inspection{ids: []string{id}, bodies: true})
		if err != nil {
			return err
		}
		if len(all) != 1 || !all[0].there || ref.ID == "" && !all[0].isNamed(now) {
			return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrNotFound)
		}
		found = all[0].found(groups, len(removing))
		return nil
	})
	return found, err
}

// isNamed tells whether the message has its delay ID still.
func (f *facts) isNamed(now time.Time) bool {
	return f.owner == f.id && instant(f.free).After(now)
}

// found says where it is in the groups of the set, while so many others are being removed.
func (f *facts) found(groups *Groups, removing int) Found {
	found := Found{ID: f.id, Options: parseOptions(f.options), Body: []byte(f.body), Due: instant(f.due)}
	if f.due != "" {
		return found
	}
	needed, unknown := max(f.refs, 1), 0
	for i, g := range f.groups {
		var r record
		r.parse(g.record)
		in := FoundIn{Group: groups.Names[i], Deliveries: r.count, Delivered: r.delivered(), Reason: r.reason}
		switch {
		case g.unack != "":
			in.State, in.At = Unack, instant(g.unack)
		case g.retry != "":
			in.State, in.At = Retry, instant(g.retry)
		case g.dead != "":
			in.State, in.At = Dead, instant(g.dead)
		default:
			unknown++
		}
		found.Groups = append(found.Groups, in)
	}
	// As many groups as need it have it. If those that are left are all needed, it is ready in them; if none
	// is, they are done with it. Those that are being removed are out of the set, and may need it still.
	left := needed - f.holders()
	kept := found.Groups[:0]
	for _, in := range found.Groups {
		switch {
		case in.State != "":
		case left <= 0:
			continue
		case left-removing >= unknown:
			in.State = Ready
		}
		kept = append(kept, in)
	}
	found.Groups = kept
	return found
}
