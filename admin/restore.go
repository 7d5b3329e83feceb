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

// Restoring says how Restore works. The zero value restores.
type Restoring struct {
	DryRun bool // count what would come back, and change nothing

	// Refused, if not nil, is called for each message that cannot come back. why wraps ErrExists if
	// another message has its delay ID, and ErrNotFound if the topic lacks its group or partition.
	// It wraps ErrTopicMode if only one of the two topics has a Redis Stream, and ErrTooLate if its
	// recurring schedule has gone on without it. If it wraps none, another call may succeed.
	Refused func(m Message, why error)

	Progress func(Restored) // if not nil, called after each chunk of at most 50 messages
}

// Restored is what Restore did.
type Restored struct {
	// Messages is how many messages came back, or would come back in a dry run.
	Messages int `json:"messages"`

	// There is how many the topic had already. Ended is how many came back before and have ended
	// since. Refused is how many others did not come back.
	There   int `json:"there"`
	Ended   int `json:"ended"`
	Refused int `json:"refused"`
}

// MarkLasts is for how long Restore knows that a message came back. It counts from the due time of
// the message, or from when it came back if that is later.
const MarkLasts = time.Hour

// Restore brings back messages that waited for their due time or for a retry, and were cancelled.
// List returned them before that, with Query.Whole. They keep their IDs, bodies, due times, delay
// IDs with their windows, expiry and other settings. A retry comes back in its group alone, with
// its deliveries and reason. A due time in the past stays so, and counts for lateness and expiry.
//
// It can be called again with the same messages. It leaves alone what the topic has. For MarkLasts
// it also knows what came back before, and leaves that alone if it was delivered since. If it was
// cancelled since in the same state, it comes back again. A message that was never cancelled and is
// gone, comes back.
//
// It reads the messages one after the other, and restores them in chunks of 50. When ctx ends, it
// finishes the chunk that has begun. A message goes into the partition that it was in. If another
// partition has a message with its delay ID, because the number of partitions changed, it is
// refused, unless that message is published at the same moment.
//
// Errors wrap ErrNotFound if there is no such topic, or ErrInvalidArgument for a message that List
// did not return so, or one of another topic. With an error, Restored has what was done before it.
func (a *Admin) Restore(ctx context.Context, topic string, messages iter.Seq2[Message, error], r Restoring) (Restored, error) {
	run := &restoreRun{Restoring: r, admin: a, topic: topic, topics: map[string]*restoreTopic{}}
	err := run.all(ctx, messages)
	if err != nil {
		err = fmt.Errorf("restore messages of topic %q: %w", topic, err)
	}
	return run.done, err
}

// restoreRun is one Restore.
type restoreRun struct {
	Restoring
	admin  *Admin
	topic  string
	topics map[string]*restoreTopic // plain topics by name
	used   *int                     // partitions that programs use, 0 if nobody set them; nil: not read yet
	parts  []string                 // the partitions of the topic; nil: not read yet
	done   Restored

	chunk []Message
	of    *restoreTopic // has the chunk
	bytes int           // of the bodies of the chunk
}

// restoreTopic is a plain topic of a run.
type restoreTopic struct {
	*operate.Topic
	stream  bool
	groups  int
	refused error // why nothing comes back in it; nil: it does
}

func (r *restoreRun) all(ctx context.Context, messages iter.Seq2[Message, error]) error {
	if _, err := r.open(ctx, r.topic); err != nil {
		return err
	}
	for m, err := range messages {
		if err == nil {
			err = r.add(ctx, m)
		}
		if err != nil {
			return err
		}
	}
	return r.flush(ctx)
}

// add puts a message into the chunk, which it restores first if there is no room.
func (r *restoreRun) add(ctx context.Context, m Message) error {
	if err := checkRestored(m); err != nil {
		return err
	}
	plain := cmp.Or(m.Topic, r.topic)
	if whole, _, ok := partitions.Parse(plain); plain != r.topic && (!ok || whole != r.topic) {
		return fmt.Errorf("%w: message %s is of topic %q", ErrInvalidArgument, m.ID, plain)
	}
	t, err := r.open(ctx, plain)
	switch {
	case err != nil:
		return err
	case t.refused != nil:
		r.refuse(m, t.refused)
		return nil
	case t.stream != m.Stored.Stream:
		r.refuse(m, fmt.Errorf("topic %q: %w: only one of the two topics has a Redis Stream", plain, ErrTopicMode))
		return nil
	}
	full := len(r.chunk) >= operate.RestoreChunk(t.groups) || r.bytes+len(m.Stored.Body) > operate.RestoredBytes
	if t != r.of || full || slices.ContainsFunc(r.chunk, func(other Message) bool { return other.ID == m.ID }) {
		if err := r.flush(ctx); err != nil {
			return err
		}
	}
	r.chunk, r.of, r.bytes = append(r.chunk, m), t, r.bytes+len(m.Stored.Body)
	return nil
}

// checkRestored refuses a message that List did not return.
func checkRestored(m Message) error {
	wrong := ""
	switch {
	case !queue.IsID(m.ID):
		wrong = "its ID is none"
	case m.Stored == nil:
		wrong = "it has no Stored; set Query.Whole of List"
	case m.Stored.Body == nil:
		wrong = "its Stored has no Body"
	case m.Stored.Record != "" && !queue.IsRecord(m.Stored.Record):
		wrong = fmt.Sprintf("its Stored has %.64q, which is no Record", m.Stored.Record)
	case len(m.Places) == 0 || m.Places[0].State != Waiting && m.Places[0].State != Retrying:
		wrong = "its first Place is neither waiting nor retrying"
	case m.Places[0].At.Before(queue.Earliest) || m.Places[0].At.After(time.Now().Add(redisdelay.MaxDelay)):
		wrong = fmt.Sprintf("it is due at %v; want a time from the year 2000 on, at most %v ahead", m.Places[0].At, redisdelay.MaxDelay)
	default:
		return nil
	}
	return fmt.Errorf("%w: message %q: %s", ErrInvalidArgument, m.ID, wrong)
}

// open returns a plain topic, after it checked permissions and whether programs use it.
func (r *restoreRun) open(ctx context.Context, plain string) (*restoreTopic, error) {
	if t := r.topics[plain]; t != nil {
		return t, nil
	}
	work := rights.Restoring
	if r.DryRun {
		work = rights.Surveying
	}
	t, err := r.admin.topic(ctx, plain, work)
	if err != nil {
		return nil, err
	}
	opened := &restoreTopic{Topic: t}
	groups, err := t.Existing(ctx)
	switch {
	case errors.Is(err, ErrNotFound) && plain != r.topic:
		opened.refused = fmt.Errorf("partition %q: %w", plain, ErrNotFound)
	case errors.Is(err, ErrNotFound):
		parts, failed := r.admin.parts(ctx, plain)
		if failed != nil || len(parts) == 0 {
			return nil, errors.Join(err, failed)
		}
		opened.refused = fmt.Errorf("the topic has partitions, and the message is of none: %w", ErrNotFound)
	case err != nil:
		return nil, err
	default:
		opened.stream, opened.groups = groups.Stream, len(groups.Names)
		if err := r.isUsed(ctx, plain); errors.Is(err, ErrNotFound) {
			opened.refused = err
		} else if err != nil {
			return nil, err
		}
	}
	r.topics[plain] = opened
	return opened, nil
}

// isUsed returns ErrNotFound for a partition that programs do not use any more.
func (r *restoreRun) isUsed(ctx context.Context, plain string) error {
	if plain == r.topic {
		return nil
	}
	if r.used == nil {
		p, err := queue.PartitioningOf(ctx, r.admin.client, r.admin.config.KeyPrefix, r.topic)
		if err != nil {
			return err
		}
		used := max(p.Count, p.Before, p.Next)
		r.used = &used
	}
	if *r.used > 0 && numberOf(plain) >= *r.used {
		return fmt.Errorf("partition %q: the topic has %d partitions now: %w", plain, *r.used, ErrNotFound)
	}
	return nil
}

// flush restores the chunk.
func (r *restoreRun) flush(ctx context.Context) error {
	some := r.chunk
	r.chunk, r.bytes = nil, 0
	if len(some) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	absent := make([]operate.Absent, len(some))
	for i, m := range some {
		p := m.Places[0]
		absent[i] = operate.Absent{ID: m.ID, Body: m.Stored.Body, Own: m.Stored.Options, Record: m.Stored.Record, At: p.At, Free: m.Stored.DelayIDUntil}
		if p.State == Retrying {
			absent[i].Group = groupName(p.Group)
		}
	}
	fates, err := r.restore(context.WithoutCancel(ctx), absent)
	if err != nil {
		return aboutTopic(r.of.Name, err)
	}
	for i, fate := range fates {
		r.count(some[i], absent[i], fate)
	}
	if r.Progress != nil {
		r.Progress(r.done)
	}
	return nil
}

// restore restores some messages, without those whose delay ID another partition has.
func (r *restoreRun) restore(ctx context.Context, all []operate.Absent) ([]operate.Restored, error) {
	taken, err := r.takenElsewhere(ctx, all)
	if err != nil {
		return nil, err
	}
	fates := make([]operate.Restored, len(all))
	for _, without := range []bool{false, true} {
		var some []operate.Absent
		var of []int
		for i, m := range all {
			if taken[m.ID] == without {
				some, of = append(some, m), append(of, i)
			}
		}
		if len(some) == 0 {
			continue
		}
		these, err := r.of.Restore(ctx, some, r.DryRun || without)
		if err != nil {
			return nil, err
		}
		for n, fate := range these {
			if fate == operate.CameBack && without {
				fate = operate.Named
			}
			fates[of[n]] = fate
		}
	}
	return fates, nil
}

// takenElsewhere returns the IDs of messages whose delay ID a message in another partition has.
func (r *restoreRun) takenElsewhere(ctx context.Context, all []operate.Absent) (map[string]bool, error) {
	var named, ids []string
	for _, m := range all {
		if id := queue.ParseOptions(m.Own).DelayID; id != "" && (m.Group == "" || m.Free.After(time.Now())) {
			named, ids = append(named, id), append(ids, m.ID)
		}
	}
	if len(named) == 0 || r.of.Name == r.topic {
		return nil, nil
	}
	if r.parts == nil {
		parts, err := r.admin.parts(ctx, r.topic)
		if err != nil {
			return nil, err
		}
		r.parts = parts
	}
	taken := map[string]bool{}
	for _, plain := range r.parts {
		if plain == r.of.Name {
			continue
		}
		other, err := r.admin.handle(plain)
		if err != nil {
			return nil, err
		}
		has, err := other.Taken(ctx, named)
		if err != nil {
			return nil, aboutTopic(plain, err)
		}
		for i, is := range has {
			taken[ids[i]] = taken[ids[i]] || is
		}
	}
	return taken, nil
}

// count counts what became of a message.
func (r *restoreRun) count(m Message, absent operate.Absent, fate operate.Restored) {
	switch fate {
	case operate.CameBack:
		r.done.Messages++
	case operate.IsHere:
		r.done.There++
	case operate.HasEnded:
		r.done.Ended++
	case operate.Named:
		r.refuse(m, fmt.Errorf("delay ID %q: %w", queue.ParseOptions(absent.Own).DelayID, ErrExists))
	case operate.NoGroup:
		r.refuse(m, fmt.Errorf("group %q: %w", absent.Group, ErrNotFound))
	case operate.Undone:
		r.refuse(m, fmt.Errorf("%w: its recurring schedule has taken it back or goes on without it", ErrTooLate))
	default:
		r.refuse(m, fmt.Errorf("some group has it ready, and nobody knows whether group %q does; try again when that has handled it", absent.Group))
	}
}

func (r *restoreRun) refuse(m Message, why error) {
	r.done.Refused++
	if r.Refused != nil {
		r.Refused(m, why)
	}
}
