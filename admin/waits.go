package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

const (
	// waitsAtOnce is how many messages one pipeline changes. Others get their turn between two.
	waitsAtOnce = 50

	// mostRescheduled is how many messages one run of RescheduleAll lists at most. It keeps their
	// IDs and due times in memory, some 100 bytes each.
	mostRescheduled = 1_000_000
)

// CancelAll cancels many messages that wait for their due time or for a retry, in chunks of 50,
// and returns how many. It cancels a retry in Bulk.Group alone: unlike Cancel, it changes no other
// group. Only Restore brings the messages back, so list them first, with Query.Whole.
//
// When ctx ends, it finishes the chunk that has begun, and a later call goes on. A message that
// does not wait any more when its turn comes stays as it is, see Progress.Gone. Errors wrap
// ErrInvalidArgument for a wrong Bulk.
func (a *Admin) CancelAll(ctx context.Context, topic string, bulk Bulk) (int, error) {
	return a.waits(ctx, "cancel", topic, bulk, rights.CancellingMany)
}

// RescheduleAll gives many messages that wait for their due time or for a retry another one:
// Bulk.When, or theirs moved by Bulk.By. Without either, or if that is in the past, they are
// delivered now. It does so in chunks of 50, and returns how many it changed. A retry gets it in
// Bulk.Group alone: unlike Reschedule, it changes no other group. It ignores messages that are
// published after it began. One run takes a million messages at most.
//
// It changes each message once. A second run with By moves again what the first has moved, unless
// both have the same Bulk.Listed. So list the messages first, and pass them to each run.
//
// It treats ctx, and messages that do not wait any more, as CancelAll does. A message that cannot
// have the due time stays as it is, see Progress.Refused. The error at the end names some of these,
// and wraps ErrPastExpiry, ErrExists or ErrInvalidArgument.
func (a *Admin) RescheduleAll(ctx context.Context, topic string, bulk Bulk) (int, error) {
	return a.waits(ctx, "reschedule", topic, bulk, rights.MovingDueTimes)
}

// waits runs the operation of a name on messages that wait.
func (a *Admin) waits(ctx context.Context, name, topic string, bulk Bulk, work rights.Work) (done int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s messages of topic %q: %w", name, topic, err)
		}
	}()
	o, _ := OperationNamed(name)
	if err := o.check(bulk); err != nil {
		return 0, err
	}
	if bulk.DryRun {
		work = rights.Surveying
	}
	if len(bulk.States) == 0 {
		bulk.States = []State{Waiting}
	}
	bulk.Group = groupName(bulk.Group)
	r := &waitRun{a: a, bulk: bulk, work: work, cancels: !o.Times}
	if bulk.Listed != nil {
		done, err = r.onListed(ctx, topic)
	} else {
		done, err = over(ctx, a, topic, func(plain string) (int, error) { return r.on(ctx, plain) }, plus)
	}
	return done, errors.Join(err, r.refusals())
}

// waitRun is a run of an operation on messages that wait, in one partition after the other.
type waitRun struct {
	a        *Admin
	bulk     Bulk
	work     rights.Work
	cancels  bool // else it reschedules
	chosen   int  // messages so far, of Bulk.Limit
	progress Progress
	refused  []error // the first ones
}

// waitingTopic is a plain topic of a run.
type waitingTopic struct {
	*operate.Topic
	now    time.Time // by the server's clock, when the run came to it
	spread *spread
}

// open returns a plain topic, after it checked permissions and the group of retries.
func (r *waitRun) open(ctx context.Context, plain string) (*waitingTopic, error) {
	t, err := r.a.topic(ctx, plain, r.work)
	if err != nil {
		return nil, err
	}
	stats, err := t.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if r.takes(Retrying) && !stats.Has(r.bulk.Group) {
		return nil, fmt.Errorf("group %q of topic %q: %w", r.bulk.Group, plain, ErrNotFound)
	}
	return &waitingTopic{t, stats.Now, &spread{from: r.bulk.When.due.From(stats.Now), over: r.bulk.Spread}}, nil
}

func (r *waitRun) takes(state State) bool { return slices.Contains(r.bulk.States, state) }

// on changes the chosen messages of a plain topic, and returns how many it changed.
func (r *waitRun) on(ctx context.Context, plain string) (int, error) {
	if r.full() {
		return 0, nil
	}
	t, err := r.open(ctx, plain)
	if err != nil {
		return 0, err
	}
	if r.cancels || r.bulk.DryRun {
		return r.change(ctx, t, r.found(ctx, t))
	}
	// A message that has moved may stand where it would be listed again. So list all first.
	var all []operate.Wait
	for some, err := range r.found(ctx, t) {
		if err != nil {
			return 0, err
		}
		if all = append(all, some...); len(all) > mostRescheduled {
			return 0, fmt.Errorf("%w: more than %d messages are chosen; set a Limit or a Filter that choose fewer", ErrInvalidArgument, mostRescheduled)
		}
	}
	t.spread.of = len(all)
	return r.change(ctx, t, func(yield func([]operate.Wait, error) bool) { yield(all, nil) })
}

// full returns whether the Limit leaves nothing to choose.
func (r *waitRun) full() bool { return r.bulk.Limit > 0 && r.chosen >= r.bulk.Limit }

// found returns the chosen messages of a plain topic, page by page, those that wait for a retry
// first: a message that waits for its due time may come to wait for a retry meanwhile.
func (r *waitRun) found(ctx context.Context, t *waitingTopic) iter.Seq2[[]operate.Wait, error] {
	bytes := 0
	if !r.bulk.DryRun && !r.cancels || r.bulk.Filter.needsBodies() {
		bytes = pageBytes
	}
	return func(yield func([]operate.Wait, error) bool) {
		for _, state := range []State{Retrying, Waiting} {
			if !r.takes(state) {
				continue
			}
			cursor := ""
			if from := r.bulk.Filter.From; !from.IsZero() {
				cursor = fmt.Sprintf("%d:%s", from.UnixMilli()-1, latestID)
			}
			for {
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
				page, err := t.List(ctx, r.bulk.Group, string(state), cursor, 1000, bytes)
				if err != nil {
					yield(nil, err)
					return
				}
				var some []operate.Wait
				for _, l := range page.Messages {
					if until := r.bulk.Filter.Until; r.full() || !until.IsZero() && !l.At.Before(until) {
						page.Next = ""
						break
					}
					r.progress.Looked++
					if m := r.a.listed(t.Name, t.Name, l); r.chooses(t, m) {
						some = append(some, waitOf(m))
						r.chosen++
					}
				}
				if !yield(some, nil) {
					return
				}
				r.tell()
				if cursor = page.Next; cursor == "" {
					break
				}
			}
		}
	}
}

// chooses returns whether a message is one to change. One that has the due time already is not.
func (r *waitRun) chooses(t *waitingTopic, m Message) bool {
	if !r.bulk.Filter.Matches(m) {
		return false
	}
	if r.cancels || r.bulk.By != 0 || r.bulk.Spread != 0 || r.bulk.Back {
		return true
	}
	at, due := m.Places[0].At, r.bulk.When.due.From(t.now)
	if !due.After(t.now) {
		return at.After(t.now)
	}
	return !at.Equal(due)
}

// waitOf returns what changes a message.
func waitOf(m Message) operate.Wait {
	w := operate.Wait{ID: m.ID, At: m.Places[0].At}
	if m.Places[0].State == Retrying {
		w.Group = groupName(m.Places[0].Group)
		if m.Stored != nil {
			w.Record = m.Stored.Record
		}
	}
	if m.OnExpiry == redisdelay.ExpiryDrop || m.OnExpiry == redisdelay.ExpiryDead {
		w.Expires = m.ExpiresAt
	}
	return w
}

// change changes messages in chunks, and returns how many. When ctx ends, it finishes the chunk.
func (r *waitRun) change(ctx context.Context, t *waitingTopic, found iter.Seq2[[]operate.Wait, error]) (int, error) {
	before := r.progress.Done
	for some, err := range found {
		if err != nil {
			return r.progress.Done - before, err
		}
		for chunk := range slices.Chunk(some, waitsAtOnce) {
			if err := ctx.Err(); err != nil {
				return r.progress.Done - before, err
			}
			if err := r.chunk(context.WithoutCancel(ctx), t, chunk); err != nil {
				return r.progress.Done - before, err
			}
			r.tell()
		}
	}
	return r.progress.Done - before, nil
}

func (r *waitRun) tell() {
	if r.bulk.Progress != nil {
		r.bulk.Progress(r.progress)
	}
}

// chunk changes a chunk of messages, or counts them in a dry run.
func (r *waitRun) chunk(ctx context.Context, t *waitingTopic, chunk []operate.Wait) error {
	if r.bulk.DryRun {
		r.progress.Done += len(chunk)
		return nil
	}
	do := t.CancelWaits
	if !r.cancels {
		do = t.RescheduleWaits
		chunk = r.due(t, chunk)
	}
	outcomes, err := do(ctx, chunk)
	if err != nil {
		return err
	}
	for _, err := range outcomes {
		switch {
		case err == nil:
			r.progress.Done++
		case errors.Is(err, operate.ErrGone):
			r.progress.Gone++
		default:
			r.refuse(err)
		}
	}
	return nil
}

// due sets the new due times of a chunk, and returns the messages that can have theirs.
func (r *waitRun) due(t *waitingTopic, chunk []operate.Wait) (can []operate.Wait) {
	dues := t.spread.dues(len(chunk))
	latest := t.now.Add(redisdelay.MaxDelay)
	for i, w := range chunk {
		switch {
		case dues != nil:
			w.Due = dues[i]
		case r.bulk.By != 0:
			at := w.At.Add(r.bulk.By)
			if at.After(latest) {
				r.refuse(fmt.Errorf("message %s of topic %q: %w: due at %v: want at most %v ahead", w.ID, t.Name, ErrInvalidArgument, at, redisdelay.MaxDelay))
				continue
			}
			w.Due = queue.At(at)
		case r.bulk.Back:
			w.Due, w.At = queue.At(w.At), time.Time{}
		default:
			w.Due = queue.At(t.spread.from)
		}
		can = append(can, w)
	}
	return can
}

// namedRefusals is how many refused messages an error names.
const namedRefusals = 10

func (r *waitRun) refuse(err error) {
	if r.progress.Refused++; len(r.refused) < namedRefusals {
		r.refused = append(r.refused, err)
	}
}

// refusals returns an error about the messages that could not be changed, nil without any.
func (r *waitRun) refusals() error {
	if len(r.refused) == 0 {
		return nil
	}
	more := ""
	if n := r.progress.Refused - len(r.refused); n > 0 {
		more = fmt.Sprintf("\nand %d more", n)
	}
	return fmt.Errorf("%d refused, and as they were:\n%w%s", r.progress.Refused, errors.Join(r.refused...), more)
}

// onListed changes the messages that Bulk.Listed has and that are chosen.
func (r *waitRun) onListed(ctx context.Context, topic string) (int, error) {
	topics, total := map[string]*waitingTopic{}, 0
	if r.bulk.Spread > 0 {
		for m, err := range r.bulk.Listed {
			if err != nil {
				return 0, err
			}
			if r.has(m) {
				total++
			}
		}
	}
	spread := &spread{over: r.bulk.Spread, of: total}
	var chunk []operate.Wait
	var of *waitingTopic
	change := func() error {
		some := chunk
		chunk = nil
		if len(some) == 0 {
			return nil
		}
		_, err := r.change(ctx, of, func(yield func([]operate.Wait, error) bool) { yield(some, nil) })
		return err
	}
	for m, err := range r.bulk.Listed {
		if err != nil {
			return r.progress.Done, err
		}
		if r.full() {
			break
		}
		r.progress.Looked++
		if !r.has(m) {
			continue
		}
		plain := cmp.Or(m.Topic, topic)
		if whole, _, ok := partitions.Parse(plain); plain != topic && (!ok || whole != topic) {
			return r.progress.Done, fmt.Errorf("%w: Listed has message %s of topic %q", ErrInvalidArgument, m.ID, plain)
		}
		t := topics[plain]
		if t == nil {
			if t, err = r.open(ctx, plain); err != nil {
				return r.progress.Done, err
			}
			if spread.from.IsZero() {
				spread.from = t.spread.from
			}
			t.spread = spread
			topics[plain] = t
		}
		if !r.chooses(t, m) {
			continue
		}
		if t != of || len(chunk) == waitsAtOnce {
			if err := change(); err != nil {
				return r.progress.Done, err
			}
			of = t
		}
		chunk = append(chunk, waitOf(m))
		r.chosen++
	}
	err := change()
	return r.progress.Done, err
}

// has returns whether a message of Bulk.Listed is in one of the states, and of the group.
func (r *waitRun) has(m Message) bool {
	if len(m.Places) == 0 {
		return false
	}
	p := m.Places[0]
	return r.takes(p.State) && (p.State != Retrying || groupName(p.Group) == r.bulk.Group) && r.bulk.Filter.Matches(m)
}
