package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Message is a message on its way into a topic.
type Message struct {
	ID      string
	Due     Due
	Options Options
	Body    []byte
}

// Due says when a message is due by the clock of the Redis server. The zero value means now.
type Due struct {
	in time.Duration // from when the server takes the message
	at int64         // ms of the Unix epoch; 0: relative
}

// In is due a while after the server takes the message. It is rounded up to the millisecond.
func In(d time.Duration) Due { return Due{in: max(d, 0)} }

// At is due at an instant. It is rounded up to the millisecond.
func At(t time.Time) Due {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	return Due{at: max(ms, 1)}
}

func (d Due) encode() string {
	if d.at != 0 {
		return "@" + strconv.FormatInt(d.at, 10)
	}
	return millis(d.in)
}

// Publish takes all the messages into the topic in one atomic step, or none. The publisher numbers
// its calls of a topic from 1 and has one under way at a time; a number that the topic has seen is
// taken for a repeat and changes nothing. The messages' IDs are in order.
func (t *Topic) Publish(ctx context.Context, publisher string, number uint64, messages []Message) error {
	return t.PublishWithin(ctx, publisher, number, messages, 0)
}

// PublishWithin is Publish unless more messages than limit would then wait for a delivery: then it returns a Refusal
// that wraps ErrTopicFull. 0 is no limit. A Refusal that wraps ErrExists means that the delay ID of one is taken,
// ErrTopicMode that the handle is for another kind of topic.
func (t *Topic) PublishWithin(ctx context.Context, publisher string, number uint64, messages []Message, limit int) error {
	return t.withGroups(ctx, func(groups *Groups) error {
		if err := t.checkMode(groups); err != nil {
			return err
		}
		keys := make([]string, 0, 9+3*len(groups.Names))
		keys = append(keys, t.keys.Meta(), t.keys.Messages(), t.keys.Pending(), t.keys.Options(),
			t.keys.Refs(), t.keys.Scheduler(), t.keys.Publisher(publisher), t.keys.Names(), t.keys.Taken())
		for _, g := range groups.Names {
			if groups.Stream {
				keys = append(keys, t.Name, t.keys.Retry(g), t.keys.Paused())
			} else {
				keys = append(keys, t.keys.Ready(g), t.keys.Retry(g), t.keys.Waiters(g))
			}
		}
		call := &Call{script: &publishScript, keys: keys, args: t.publishArgs(groups, number, messages, limit)}
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		err := outcome(call.cmd.Val(), messages, limit)
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) && groups.Stream {
			refusal.Full = false // it is not known here who needs room
		}
		return err
	})
}

// Refusal is the error of a call that was refused for the sake of some of its messages. It wraps ErrExists or ErrTopicFull.
// Nothing of the call was published.
type Refusal struct {
	error
	// Taken are messages that are refused in any company, as their delay IDs are those of messages that were there
	// before. Like Twice they are indexes, a thousand at most.
	Taken []int
	// Twice are messages whose delay IDs are those of messages before them in the call.
	Twice []int
	// Room is how many more messages may wait, where the topic is full. Those that take the place of others, are left out, or
	// go into a stream at once need none.
	Room int
	// Full tells that more than Room are refused in any company, where each needs some.
	Full bool
}

func (r *Refusal) Unwrap() error { return r.error }

// IsTaken is the error for a message whose delay ID is that of another.
func IsTaken(m *Message) error { return fmt.Errorf("%w: %q", ErrExists, m.Options.DelayID) }

// outcome is what the script says of a call.
func outcome(reply any, messages []Message, limit int) error {
	said, about, _ := strings.Cut(Text(reply), " ")
	switch said {
	case "ok", "repeated":
		return nil
	case "stale":
		return ErrStale
	case "full":
		if room, err := strconv.Atoi(about); err == nil {
			return &Refusal{error: fmt.Errorf("%w: at most %d messages may wait", ErrTopicFull, limit), Room: room, Full: true}
		}
	case "exists", "twice":
		if found := indexes(messages, strings.Fields(about)); len(found) > 0 {
			refusal := &Refusal{error: IsTaken(&messages[found[0]])}
			if said == "exists" {
				refusal.Taken = found
			} else {
				refusal.Twice = found
			}
			return refusal
		}
	}
	return fmt.Errorf("publish: unexpected reply %q", Text(reply))
}

// indexes finds the messages with these IDs, which are in the same order.
func indexes(messages []Message, ids []string) (found []int) {
	for i := range messages {
		if len(found) < len(ids) && messages[i].ID == ids[len(found)] {
			found = append(found, i)
		}
	}
	return found
}

func (t *Topic) publishArgs(groups *Groups, number uint64, messages []Message, limit int) []any {
	args := make([]any, 8, 10+2*len(messages))
	// Pointers are not boxed, as texts are. Tools that print commands show addresses for IDs, and the length of bodies.
	for i := range messages {
		args = append(args, &messages[i].ID, (*body)(&messages[i].Body))
	}
	runs, soonest := 0, int64(math.MaxInt64)
	for i := 0; i < len(messages); runs++ {
		first := i
		if messages[i].Due.MayBeNow() {
			soonest = min(soonest, messages[i].Due.at)
		}
		for i < len(messages) && messages[i].Due == messages[first].Due {
			i++
		}
		args = append(args, i-first, messages[first].Due.encode())
	}
	for i := range messages {
		if options := messages[i].Options.encode(); options != "" {
			args = append(args, &messages[i].ID, options)
		}
	}
	copy(args, []any{groups.Version, number, millis(memory), t.single, len(messages), runs, limit, soonest})
	return args
}

// body is a message's body as an argument, by a pointer.
type body []byte

// MarshalBinary is what go-redis sends.
func (b *body) MarshalBinary() ([]byte, error) { return *b, nil }

// String is what hooks of the client print.
func (b *body) String() string { return fmt.Sprintf("<%d bytes>", len(*b)) }

// MayBeNow tells whether the message can be due as soon as the server hears of it.
func (d Due) MayBeNow() bool { return d.at != 0 || d.in == 0 }
