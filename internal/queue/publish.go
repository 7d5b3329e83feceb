package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Message is a message to be published.
type Message struct {
	ID      string
	Due     Due
	Options Options
	Body    []byte
}

// Due says when a message is due by the clock of the Redis server. The zero value means now.
type Due struct {
	in time.Duration // after the server takes the message
	at int64         // milliseconds of the Unix epoch; 0: in counts
}

// Earliest is the first instant that users may set as a due time. An earlier one, such as the zero
// time, was never set, and does not mean "now".
var Earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// In returns a Due of d after the server takes the message, rounded up to the millisecond.
func In(d time.Duration) Due { return Due{in: max(d, 0)} }

// At returns a Due at an instant, rounded up to the millisecond.
func At(t time.Time) Due {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	return Due{at: max(ms, 1)}
}

// From returns when a Due is, if the server takes the message at a time.
func (d Due) From(now time.Time) time.Time {
	if d.at != 0 {
		return time.UnixMilli(d.at)
	}
	return time.UnixMilli(now.UnixMilli() + CeilMillis(d.in))
}

func (d Due) encode() string {
	if d.at != 0 {
		return "@" + strconv.FormatInt(d.at, 10)
	}
	return millis(d.in)
}

// Publish publishes all messages in one atomic step, or none. The publisher numbers its calls of a
// topic from 1 and has one under way at a time. A number that the topic has seen marks a repeat,
// which changes nothing. The IDs of the messages are in order.
func (t *Topic) Publish(ctx context.Context, publisher string, number uint64, messages []Message) error {
	return t.PublishWithin(ctx, publisher, number, messages, Limit{})
}

// Limit is how many messages may wait for a delivery.
type Limit struct {
	Messages int // 0: no limit
	// Parts has the number of messages of each part of the call that no call has room for if it is
	// more than Refusal.Room. They are counted as refused then.
	Parts []int
}

// PublishWithin is Publish with a limit of the messages that wait for a delivery. It returns a
// Refusal that wraps ErrTopicFull if more would wait, ErrExists if a delay ID is taken, or
// ErrReserved if one is for an occurrence. It
// returns ErrTopicMode if the handle is for the other kind of topic.
func (t *Topic) PublishWithin(ctx context.Context, publisher string, number uint64, messages []Message, limit Limit) error {
	return t.with(ctx, t.Groups, func(groups *Groups) error {
		if err := t.checkMode(groups); err != nil {
			return err
		}
		call := t.publishCall(groups, publisher, number, messages, limit)
		if err := Do(ctx, t.client, call); err != nil {
			return sent(err)
		}
		err := outcome(call.cmd.Val(), messages, limit.Messages)
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) && groups.Stream {
			refusal.Full = false // the script does not say which messages need room
		}
		return err
	})
}

// sent returns the error of a call that may have been sent. It wraps ErrMaybePublished unless the
// script has certainly not run.
func sent(err error) error {
	// The first two may be about a repeat of the client, after a reply that was lost. The last one
	// is of a Sentinel, because the script never answers that.
	if servers.Unreachable(err) || errors.Is(err, refusal.ErrForbidden) || errors.Is(err, redis.Nil) {
		return fmt.Errorf("%w: %w", ErrMaybePublished, err)
	}
	return err
}

// Refusal is the error of a call that was refused because of some of its messages. It wraps
// ErrExists, ErrReserved or ErrTopicFull. Nothing of the call was published.
type Refusal struct {
	error
	// Taken has the indexes of messages whose delay IDs the topic has already, a thousand at most.
	// They would be refused in any other call, too.
	Taken []int
	// Reserved has the indexes of messages whose delay IDs are for occurrences of a recurring
	// schedule, a thousand at most. They would be refused in any other call, too.
	Reserved []int
	// Twice has the indexes of messages whose delay IDs earlier messages of the call have, a
	// thousand at most.
	Twice []int
	// Room is how many more messages may wait in a full topic. Messages that replace others, are
	// left out, or go into a stream at once need no room.
	Room int
	// Full tells that any call with more than Room messages is refused, if each needs room.
	Full bool
}

func (r *Refusal) Unwrap() error { return r.error }

// IsTaken returns the error for a message whose delay ID another message has.
func IsTaken(m *Message) error { return fmt.Errorf("%w: delay ID %q", ErrExists, m.Options.DelayID) }

// IsReserved returns the error for a message whose delay ID is for an occurrence.
func IsReserved(m *Message) error { return fmt.Errorf("%w: %q", ErrReserved, m.Options.DelayID) }

// outcome returns nil or the error that the script's reply stands for.
func outcome(reply any, messages []Message, limit int) error {
	said, about, _ := strings.Cut(Text(reply), " ")
	switch said {
	case "ok":
		judge(messages, about, Passed)
		return nil
	case "repeated":
		judge(messages, "", Repeated)
		return nil
	case "stale":
		return ErrStale
	case "full":
		if room, err := strconv.Atoi(about); err == nil {
			return &Refusal{error: fmt.Errorf("%w: at most %d messages may wait", ErrTopicFull, limit), Room: room, Full: true}
		}
	case "exists", "twice", "reserved":
		if found := indexes(messages, strings.Fields(about)); len(found) > 0 {
			switch first := &messages[found[0]]; said {
			case "exists":
				return &Refusal{error: IsTaken(first), Taken: found}
			case "reserved":
				return &Refusal{error: IsReserved(first), Reserved: found}
			default:
				return &Refusal{error: IsTaken(first), Twice: found}
			}
		}
	}
	return fmt.Errorf("%w: unexpected reply %q", ErrMaybePublished, Text(reply))
}

// indexes returns the indexes of the messages with these IDs. Both are in the same order.
func indexes(messages []Message, ids []string) (found []int) {
	for i := range messages {
		if len(found) < len(ids) && messages[i].ID == ids[len(found)] {
			found = append(found, i)
		}
	}
	return found
}

// publishCall returns the call of the script.
func (t *Topic) publishCall(groups *Groups, publisher string, number uint64, messages []Message, limit Limit) *Call {
	runs, recurs, options := 0, false, 0
	soonest := int64(math.MaxInt64)
	for i := range messages {
		if i == 0 || messages[i].Due != messages[i-1].Due {
			runs++
			if messages[i].Due.MayBeNow() {
				soonest = min(soonest, messages[i].Due.at)
			}
		}
		if o := &messages[i].Options; *o != (Options{}) {
			options++
			recurs = recurs || o.Guard != nil || mayBeOccurrence(o.DelayID)
		}
	}
	parts := ""
	if limit.Messages > 0 && (!groups.Stream || len(limit.Parts) == 1) { // see Refusal.Full
		parts = strings.Trim(fmt.Sprint(limit.Parts), "[]")
	}
	stream := t.keys.Ready("") // a key that does not exist
	if groups.Stream {
		stream = t.Name
	}
	keys, n := t.publishKeys(groups)
	d := publishScript.draft(keys, n, 2*(len(messages)+runs+options), []any{
		"publisher", t.keys.Publisher(publisher), "stream", stream,
		"version", groups.Version, "number", number, "memory", millis(memory), "limit", limit.Messages, "soonest", soonest,
		"together", parts, "window", windowEnd(groups.Window), "single", groups.Single, "recurs", recurs, "recorded", groups.Recorded,
	})
	// Pointers go into an interface without an allocation. So tools that print commands show
	// addresses of IDs, and lengths of bodies.
	for i := range messages {
		d.Each("message", "id", &messages[i].ID, "body", (*body)(&messages[i].Body))
	}
	for i := 0; i < len(messages); {
		first := i
		for i < len(messages) && messages[i].Due == messages[first].Due {
			i++
		}
		d.Each("run", "count", i-first, "due", messages[first].Due.encode())
	}
	for i := range messages {
		if own := messages[i].Options.encode(); own != "" {
			d.Each("option", "of", &messages[i].ID, "own", own)
		}
	}
	return d.Call()
}

// publishKeys returns the keys of the publish script for a set of groups, and how many groups they
// are of. It keeps them for the set that is remembered.
func (t *Topic) publishKeys(groups *Groups) ([]string, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.published != groups {
		all := groups.All()
		t.published, t.publishing, t.publishingFor = groups, publishScript.keysOf(t.keys, Target{Groups: all}), len(all)
	}
	return t.publishing, t.publishingFor
}

// body is a message's body as an argument, by a pointer.
type body []byte

// MarshalBinary returns what go-redis sends.
func (b *body) MarshalBinary() ([]byte, error) { return *b, nil }

// String returns what hooks of the client print.
func (b *body) String() string { return fmt.Sprintf("<%d bytes>", len(*b)) }

// By returns when the message is due if the server takes it now. The zero time is at once. An
// instant counts even if it is past.
func (d Due) By(now time.Time) time.Time {
	switch {
	case d.at != 0:
		return time.UnixMilli(d.at)
	case d.in > 0:
		return now.Add(d.in)
	}
	return time.Time{}
}

// MayBeNow tells whether the message may be due when the server takes it.
func (d Due) MayBeNow() bool { return d.at != 0 || d.in == 0 }
