package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

// facts are all that the indexes say about one message at one time.
type facts struct {
	id      string
	entry   string // of ready; else the ID
	there   bool   // there is a body
	body    string // only if bodies were asked for
	options string
	refs    int // -1: none
	due     string
	owner   string // ID of the message that has its delay ID
	free    string // when the delay ID is free
	groups  []groupFacts
}

type groupFacts struct {
	unack, lease, retry, dead, record, suspect string // "": none
	recent                                     bool   // the message came into ready after the marks
}

// held tells whether the group has the message in a state other than ready.
func (f *groupFacts) held() bool { return f.unack != "" || f.retry != "" || f.dead != "" }

// holders returns how many groups have the message in a state other than ready.
func (f *facts) holders() (n int) {
	for i := range f.groups {
		if f.groups[i].held() {
			n++
		}
	}
	return n
}

// needed returns how many groups need the message, as refs says.
func (f *facts) needed() int { return max(f.refs, 1) }

// mark describes the ready list of a group at one time.
type mark struct {
	returned string // how many entries were ever put back in front
	last     string // the last entry
	length   int
	sure     bool // the script saw all entries that came after the earlier marks
}

// inspection says what inspect reads: some IDs, or a part of a list of ready.
type inspection struct {
	ids      []string
	bodies   bool
	source   int // the number of the group whose list it is, among those read; 0: ids are given
	from, to int
	marks    []mark // of an earlier inspection, for groupFacts.recent
}

// inspect reads the facts, and the marks of the same time.
func (t *Topic) inspect(ctx context.Context, groups *queue.Groups, q inspection) (found []facts, marks []mark, now time.Time, err error) {
	d := t.Draft(&queue.InspectScript, queue.Target{Groups: groups.Names}, "version", groups.Version, "bodies", q.bodies,
		"source", q.source, "from", q.from, "to", q.to, "marked", q.marks != nil)
	for i := range groups.Names {
		m := mark{}
		if i < len(q.marks) {
			m = q.marks[i]
		}
		d.Each("group", "returned", m.returned, "last", m.last)
	}
	for _, id := range q.ids {
		d.Each("message", "known", id)
	}
	reply, err := ask(ctx, t, d.Call())
	if err != nil {
		return nil, nil, now, err
	}
	for _, part := range reply.List("marks") {
		m, _ := part.([]any)
		if len(m) != 4 {
			return nil, nil, now, fmt.Errorf("inspect: unexpected mark %v", part)
		}
		marks = append(marks, mark{queue.Text(m[0]), queue.Text(m[2]), count(m[1]), m[3] == int64(1)})
	}
	for _, one := range reply.Each() {
		f := one.List("facts")
		if len(f) != 7+7*len(groups.Names) {
			return nil, nil, now, fmt.Errorf("inspect: unexpected facts %v", f)
		}
		found = append(found, parseFacts(f))
	}
	return found, marks, queue.Instant(reply.Text("now")), nil
}

func parseFacts(part []any) facts {
	entry := queue.Text(part[0])
	f := facts{id: entry[:min(queue.IDLength, len(entry))], entry: entry, body: queue.Text(part[1]), there: part[1] != nil,
		options: queue.Text(part[2]), refs: -1, due: queue.Text(part[4]), owner: queue.Text(part[5]), free: queue.Text(part[6])}
	if part[3] != nil {
		f.refs = count(part[3])
	}
	for g := part[7:]; len(g) > 0; g = g[7:] {
		f.groups = append(f.groups, groupFacts{unack: queue.Text(g[0]), lease: queue.Text(g[1]), retry: queue.Text(g[2]),
			dead: queue.Text(g[3]), record: queue.Text(g[4]), suspect: queue.Text(g[5]), recent: g[6] != nil})
	}
	return f
}

// Stored is a message as Redis has it.
type Stored struct {
	ID      string
	Options queue.Options
	Body    []byte // nil if it was not asked for, or is lost
}

// Place is the state of a message in a group, as Redis has it.
type Place struct {
	Group    string    // "": it is waiting
	State    string    // "": ready or done, and only a search through ready could tell
	At       time.Time // when it is due, when its lease ends, or when it died
	Token    string    // of its lease; only of InHand
	Record   queue.Record
	Expiries int // leases of it that expired in a row; Find only
}

// Found is a message and its places: one while it waits, else one of each group that has it.
type Found struct {
	Stored
	Places []Place
}

// Find returns one message, or queue.ErrNotFound. It returns ErrTooLate for a delay ID that is
// taken and whose message is gone: the message was due, and the window lasts.
func (t *Topic) Find(ctx context.Context, ref Ref) (Found, error) {
	if ref.ID != "" {
		found, _, err := t.find(ctx, ref, ref.ID)
		return found, err
	}
	for before := ""; ; {
		id, free, err := t.owner(ctx, ref.DelayID)
		if err != nil {
			return Found{}, err
		}
		found, gone, err := t.find(ctx, ref, id)
		if !errors.Is(err, queue.ErrNotFound) {
			return found, err
		}
		if id == before {
			// The message had the delay ID before and after free was read, so free is of the
			// message.
			if id != "" && !gone.IsZero() && free.After(gone) {
				err = fmt.Errorf("%v of topic %q: %w, and is gone", ref, t.Name, ErrTooLate)
			}
			return found, err
		}
		before = id // another message may have taken the delay ID meanwhile
	}
}

// owner returns the ID of the message that has a delay ID, and when the delay ID is free, which is
// read first. "" and the zero time are none.
func (t *Topic) owner(ctx context.Context, delayID string) (id string, free time.Time, err error) {
	name, names, taken := queue.EncodeName(delayID), t.Keys().Names(), t.Keys().Taken()
	var score *redis.FloatCmd
	var owner *redis.StringCmd
	err = t.Client().Call(func(c redis.UniversalClient) error {
		pipe := c.Pipeline()
		score, owner = pipe.ZScore(ctx, taken, name), pipe.HGet(ctx, names, name)
		// Without a connection only Exec has an error. Else it has the first, which may be "none".
		_, failed := pipe.Exec(ctx)
		for _, err := range []error{score.Err(), owner.Err(), failed} {
			if err != nil && err != redis.Nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", time.Time{}, refusal.Of(queue.NameWrongType(ctx, t.Client(), []string{names, taken}, err))
	}
	if ms := int64(score.Val()); ms > 0 {
		free = time.UnixMilli(ms)
	}
	return owner.Val(), free, nil
}

// find returns the message with an ID. If ref has a delay ID, the message must still have it. gone
// is a time at which there was no message with that ID; zero: there may be one.
func (t *Topic) find(ctx context.Context, ref Ref, id string) (found Found, gone time.Time, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		// Read first, because after this no removal begins without a change of the set.
		removing, err := t.Removing(ctx)
		if err != nil {
			return refusal.Of(err)
		}
		all, _, now, err := t.inspect(ctx, groups, inspection{ids: []string{id}, bodies: true})
		if err != nil {
			return err
		}
		if len(all) == 1 && !all[0].there {
			gone = now
		}
		if len(all) != 1 || !all[0].there || ref.ID == "" && !all[0].isNamed(now) {
			return t.noMessage(ref)
		}
		others := len(removing)
		if groups.Window != "" {
			others++
		}
		found = all[0].found(groups, others)
		return nil
	})
	return found, gone, err
}

// isNamed tells whether the message still has its delay ID.
func (f *facts) isNamed(now time.Time) bool {
	return f.owner == f.id && queue.Instant(f.free).After(now)
}

// found returns the states of the message in the groups of the set, while others may have it too:
// groups that are being removed, and the window.
func (f *facts) found(groups *queue.Groups, others int) Found {
	found := Found{Stored: Stored{f.id, queue.ParseOptions(f.options), []byte(f.body)}}
	if f.due != "" {
		found.Places = []Place{{State: Waiting, At: queue.Instant(f.due)}}
		return found
	}
	needed, unknown := f.needed(), 0
	for i, g := range f.groups {
		in := Place{Group: groups.Names[i], Record: queue.ReadRecord(g.record), Expiries: queue.ReadExpiries(g.suspect)}
		switch {
		case g.unack != "":
			in.State, in.At, in.Token = InHand, queue.Instant(g.unack), g.lease
		case g.retry != "":
			in.State, in.At = Retrying, queue.Instant(g.retry)
		case g.dead != "":
			in.State, in.At = Dead, queue.Instant(g.dead)
		default:
			unknown++
		}
		found.Places = append(found.Places, in)
	}
	// As many groups have the message as refs counts. If all groups that are left are needed, the
	// message is ready in them. If none is needed, they are done with it. One of the others may be
	// counted, and is not in the set.
	left := needed - f.holders()
	kept := found.Places[:0]
	for _, in := range found.Places {
		switch {
		case in.State != "":
		case left <= 0:
			continue
		case left-others >= unknown:
			in.State = Ready
		}
		kept = append(kept, in)
	}
	found.Places = kept
	return found
}
