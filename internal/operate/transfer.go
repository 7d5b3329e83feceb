package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// ErrMoving means that another move has one of the two topics.
var ErrMoving = errors.New("another move has the topic")

// Outcome is what a Transfer did with a message.
type Outcome int

const (
	Moved     Outcome = iota // it is in the other topic
	Gone                     // it ended meanwhile
	Busy                     // a group has it ready or in hand, or has done something with it meanwhile
	Scheduled                // it is a waiting occurrence of a recurring schedule
	Clash                    // its delay ID is that of another message in the other topic
	Lacking                  // the other topic lacks a group in which it retries or is dead
	Lingering                // it was in the other topic before, and is not forgotten there yet
)

const (
	// transferred is how many messages a step moves at most, and transferredPairs how many messages
	// times groups. Each script then takes about a millisecond.
	transferred      = 100
	transferredPairs = 1000
	// transferredBytes are the bytes of bodies that a step moves at most, but for the last message.
	transferredBytes = 1 << 20

	// transferLease is for how long a step has each topic. If it takes longer, it begins anew.
	transferLease = 2 * time.Second
	// transferTries is how often a step begins anew at most.
	transferTries = 5
	// transferWait is how long a step waits for another move, which may have been killed.
	transferWait = 2 * transferLease
)

// Transferred is what became of a message.
type Transferred struct {
	ID      string
	Outcome Outcome
	DelayID string
	Groups  []string // in which it retries or is dead; nil if it waits
	Lacks   string   // of Lacking: the first group that is missing
}

// Transfer moves messages from one topic into another, each under its own ID. The two topics may be
// on two servers, so a step has several calls:
//
//   - gather reads the messages, and takes the old topic.
//   - adopt puts copies into the new one, and takes that. A copy that would be due within a minute
//     is due after a minute.
//   - depart takes the messages out of the old topic that are still as gather read them.
//   - depart takes back the copies of the others, and arrive gives the copies their due times.
//
// So a message is in one topic at least at any time. If the program ends between two calls, the
// messages of its step are in both, and another Transfer finds the copies and goes on.
//
// A message leaves a topic only if no other move took that topic since gather or adopt of the same
// step. So of two moves no one takes back the copy that the other relies on.
//
// It is for one goroutine.
type Transfer struct {
	from, to *Topic
	mover    string
	step     int
	copied   map[string]bool // IDs of copies that a lost step has made
}

// NewTransfer returns a Transfer. It does not talk to Redis.
func NewTransfer(from, to *Topic) *Transfer {
	return &Transfer{from: from, to: to, mover: queue.Token(), copied: map[string]bool{}}
}

// Chunk returns how many messages a step moves at most, for topics with so many groups.
func Chunk(groups int) int { return min(max(transferredPairs/max(groups, 1), 1), transferred) }

// Look says what Move would do with some messages, Chunk of them at most, and changes nothing. The
// delay IDs and groups of the other topic are not compared.
func Look(ctx context.Context, from *Topic, ids []string) (found []Transferred, err error) {
	for len(ids) > 0 {
		some, err := gather(ctx, from, "", ids)
		if err != nil {
			return found, err
		}
		for _, m := range some {
			found = append(found, m.Transferred)
		}
		ids = ids[len(some):]
	}
	return found, nil
}

// Move moves some messages, Chunk of them at most, and says of each what became of it. When ctx
// ends, it finishes the step that it has begun. After an error, what it returns is what is sure.
func (t *Transfer) Move(ctx context.Context, ids []string) (done []Transferred, err error) {
	for tries := 1; len(ids) > 0; {
		some, err := t.stepOf(ctx, ids)
		switch {
		case errors.Is(err, errLost) && tries < transferTries:
			tries++
			continue
		case err != nil:
			return append(done, some...), err
		}
		done, ids, tries = append(done, some...), ids[len(some):], 1
	}
	return done, nil
}

// errLost means that a step has lost a topic, because it took too long.
var errLost = fmt.Errorf("%w: it took the topic over, or this one took longer than %v for a step", ErrMoving, transferLease)

// errKept means that a copy cannot be taken back: another move may rely on it by now.
var errKept = fmt.Errorf("a step of the move took longer than %v", transferLease)

// parcel is a message on its way.
type parcel struct {
	Transferred
	body, own, due, free string
	places               []lodging
	verdict              byte // of adopt
	result               byte // of depart
}

// lodging is where a message retries or is dead.
type lodging struct{ group, kind, score, record string }

const deadKind = "dead"

// stepOf moves the first of some messages, and returns what became of those.
func (t *Transfer) stepOf(ctx context.Context, ids []string) ([]Transferred, error) {
	t.step++
	token := t.mover + ":" + strconv.Itoa(t.step)
	var all []*parcel
	limited, end := queue.WhileRemembered(context.WithoutCancel(ctx))
	defer end()
	until, err := whenFree(ctx, func() (until int64, err error) { // both, because the old topic is taken for a short time
		if all, err = gather(ctx, t.from, token, ids); err == nil {
			until, err = t.adopt(limited, token, all)
		}
		return until, err
	})
	if err != nil {
		return nil, err
	}
	leaving := chosen(all, func(p *parcel) bool { return p.verdict == 'c' || p.verdict == 'g' })
	if err := depart(limited, t.from, token, leaving, true); err != nil {
		for _, p := range leaving {
			t.copied[p.ID] = true
		}
		return nil, err
	}
	for _, p := range leaving {
		switch p.result {
		case 'm':
			p.Outcome = Moved
		case 'g':
			p.Outcome = Gone
		default:
			p.Outcome = Busy
		}
	}
	var back []*parcel
	for _, p := range leaving {
		if p.result != 'm' && p.verdict == 'c' {
			back = append(back, p.copied(until))
		}
	}
	if len(back) > 0 {
		err := depart(limited, t.to, token, back, false)
		if err != nil && !errors.Is(err, errLost) {
			return nil, err
		}
		for _, p := range back {
			t.copied[p.ID] = err != nil
		}
	}
	released := chosen(leaving, func(p *parcel) bool { return p.result == 'm' && p.verdict == 'c' && p.heldBack(until) })
	if err := t.arrive(limited, token, until, released); err != nil {
		return nil, fmt.Errorf("%d messages have moved, and are late by up to %v: %w", len(released), staging, err)
	}
	var kept []string
	done := make([]Transferred, len(all))
	for i, p := range all {
		if done[i] = p.Transferred; t.copied[p.ID] && p.Outcome == Busy {
			kept = append(kept, p.ID)
		}
		delete(t.copied, p.ID)
	}
	if len(kept) > 0 {
		err = fmt.Errorf("%d messages stayed in topic %q, and have copies in topic %q, because %w: %s", len(kept), t.from.Name, t.to.Name, errKept, strings.Join(kept, ", "))
	}
	return done, err
}

func chosen(all []*parcel, choose func(*parcel) bool) (some []*parcel) {
	for _, p := range all {
		if choose(p) {
			some = append(some, p)
		}
	}
	return some
}

// whenFree repeats a call that finds a topic with another move, until that is over.
func whenFree[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for began := time.Now(); ; {
		reply, err := call()
		if !errors.Is(err, ErrMoving) || errors.Is(err, errLost) || time.Since(began) > transferWait {
			return reply, err
		}
		pause := time.NewTimer(transferLease / 20)
		select {
		case <-ctx.Done():
			pause.Stop()
			return reply, ctx.Err()
		case <-pause.C:
		}
	}
}

// heldBack tells whether adopt gave the copy a later due time.
func (p *parcel) heldBack(until int64) bool {
	return p.due != "" && millisOf(p.due) < until ||
		slices.ContainsFunc(p.places, func(l lodging) bool { return l.kind != deadKind && millisOf(l.score) < until })
}

// copied returns the message as adopt has put it.
func (p *parcel) copied(until int64) *parcel {
	later := func(ms string) string { return strconv.FormatInt(max(millisOf(ms), until), 10) }
	c := *p
	if c.due != "" {
		c.due = later(c.due)
	}
	c.places = slices.Clone(p.places)
	for i := range c.places {
		if l := &c.places[i]; l.kind != deadKind {
			l.score = later(l.score)
		}
	}
	return &c
}

func millisOf(text string) int64 {
	n, _ := strconv.ParseFloat(text, 64)
	return int64(n)
}

// gather reads some of the messages, the first at least. With a token it takes the topic.
func gather(ctx context.Context, t *Topic, token string, ids []string) (all []*parcel, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		all = nil
		d := t.Draft(&queue.GatherScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", t.Keys().Operation(moving),
			"version", groups.Version, "token", token, "lease", transferLease, "bytes", transferredBytes)
		for _, id := range ids {
			d.Each("message", "id", id)
		}
		reply, err := askMove(ctx, t, d)
		if err != nil {
			return err
		}
		for i, each := range reply.Each() {
			p := &parcel{body: each.Text("body"), own: each.Text("own"), due: each.Text("due"), free: each.Text("free")}
			p.ID, p.DelayID = ids[i], queue.ParseOptions(p.own).DelayID
			for place := range slices.Chunk(each.List("places"), 4) {
				number, _ := place[0].(int64)
				if len(place) != 4 || number < 1 || int(number) > len(groups.Names) {
					return fmt.Errorf("gather: unexpected reply about message %s", p.ID)
				}
				l := lodging{groups.Names[number-1], queue.Text(place[1]), queue.Text(place[2]), queue.Text(place[3])}
				p.places, p.Groups = append(p.places, l), append(p.Groups, l.group)
			}
			switch why := each.Text("why"); why {
			case "":
			case "gone":
				p.Outcome = Gone
			case "busy":
				p.Outcome = Busy
			case "scheduled":
				p.Outcome = Scheduled
			default:
				return fmt.Errorf("gather: message %s does not move for an unknown reason %q", p.ID, why)
			}
			all = append(all, p)
		}
		if len(all) == 0 {
			return errors.New("gather: the reply has no messages")
		}
		return nil
	})
	return all, err
}

// moving is the name of the operation that has the token of the move that has a topic.
const moving = "move"

// askMove is ask for the scripts of a move.
func askMove(ctx context.Context, t *Topic, d *queue.Draft) (queue.Reply, error) {
	reply, err := ask(ctx, t, d.Call())
	switch {
	case err != nil:
	case reply.Refusal == "busy":
		err = fmt.Errorf("topic %q: %w; wait for its end", t.Name, ErrMoving)
	case reply.Refusal == "lost":
		err = fmt.Errorf("topic %q: %w", t.Name, errLost)
	}
	return reply, err
}

// adopt puts copies of the messages that move into the new topic, and returns the ms until which it
// held them back.
func (t *Transfer) adopt(ctx context.Context, token string, all []*parcel) (until int64, err error) {
	err = t.to.WithExisting(ctx, func(groups *queue.Groups) error {
		d := t.to.Draft(&queue.AdoptScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", t.to.Keys().Operation(moving),
			"version", groups.Version, "token", token, "lease", transferLease, "hold", queue.CeilMillis(staging))
		var coming []*parcel
		for _, p := range all {
			if p.Outcome == Lacking {
				p.Outcome = Moved // the groups have changed since
			}
			if p.verdict = 0; p.Outcome != Moved {
				continue
			}
			if lacks := slices.IndexFunc(p.Groups, func(g string) bool { return !slices.Contains(groups.Names, g) }); lacks >= 0 {
				p.Outcome, p.Lacks = Lacking, p.Groups[lacks]
				continue
			}
			coming = append(coming, p)
			d.Each("message", "id", p.ID, "body", p.body, "own", p.own, "due", p.due, "free", p.free, "held", len(p.places))
		}
		if len(coming) == 0 {
			return nil
		}
		eachPlace(coming, groups, func(at int, l lodging) {
			d.Each("place", "at", at, "kind", l.kind, "score", l.score, "record", l.record)
		})
		reply, err := askMove(ctx, t.to, d)
		if err != nil {
			return err
		}
		verdicts := reply.Text("verdicts")
		if len(verdicts) != len(coming) {
			return fmt.Errorf("adopt: unexpected reply %.64q about %d messages", verdicts, len(coming))
		}
		until = millisOf(reply.Text("until"))
		for i, p := range coming {
			switch p.verdict = verdicts[i]; p.verdict {
			case 'n':
				p.Outcome = Clash
			case 'w':
				p.Outcome = Lingering
			}
		}
		return nil
	})
	return until, err
}

// eachPlace passes all places of some messages to do, with the number of each group.
func eachPlace(all []*parcel, groups *queue.Groups, do func(at int, l lodging)) {
	for _, p := range all {
		for _, l := range p.places {
			do(slices.Index(groups.Names, l.group)+1, l)
		}
	}
}

// depart takes messages out of a topic that are as they were read, and sets their result. The step
// is over there then.
func depart(ctx context.Context, t *Topic, token string, all []*parcel, recorded bool) error {
	return t.WithExisting(ctx, func(groups *queue.Groups) error {
		d := t.Draft(&queue.DepartScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", t.Keys().Operation(moving),
			"version", groups.Version, "token", token, "memory", queue.OperationMemory, "recorded", recorded && groups.Recorded)
		var there []*parcel
		for _, p := range all {
			// A group that was removed has the message no longer, so it is there otherwise.
			if p.result = 'o'; !slices.ContainsFunc(p.Groups, func(g string) bool { return !slices.Contains(groups.Names, g) }) {
				there = append(there, p)
				d.Each("message", "id", p.ID, "due", p.due, "held", len(p.places))
			}
		}
		eachPlace(there, groups, func(at int, l lodging) { d.Each("place", "at", at, "kind", l.kind, "score", l.score) })
		reply, err := askMove(ctx, t, d)
		if err != nil {
			return err
		}
		results := reply.Text("results")
		if len(results) != len(there) || strings.Trim(results, "mog") != "" {
			return fmt.Errorf("depart: unexpected reply %.64q about %d messages", results, len(there))
		}
		for i, p := range there {
			p.result = results[i]
		}
		return nil
	})
}

// arrive gives copies their due times, and ends the step in the new topic.
func (t *Transfer) arrive(ctx context.Context, token string, until int64, all []*parcel) error {
	return t.to.WithExisting(ctx, func(groups *queue.Groups) error {
		d := t.to.Draft(&queue.ArriveScript, queue.Target{Groups: groups.Names}, "operation", t.to.Keys().Operation(moving),
			"version", groups.Version, "token", token, "latest", until)
		retries := make([]*parcel, len(all))
		for i, p := range all {
			r := *p
			r.places = slices.DeleteFunc(slices.Clone(p.places), func(l lodging) bool {
				return l.kind == deadKind || !slices.Contains(groups.Names, l.group)
			})
			retries[i] = &r
			d.Each("message", "id", p.ID, "due", p.due, "free", p.free, "held", len(r.places))
		}
		eachPlace(retries, groups, func(at int, l lodging) { d.Each("place", "at", at, "score", l.score) })
		_, err := askMove(ctx, t.to, d)
		return err
	})
}
