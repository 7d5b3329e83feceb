package redisdelay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// DelayKey is the metadata key for a delay that starts when the message is published, by the
	// clock of the Redis server. The value is a time.ParseDuration text such as "15m" or "250ms",
	// from "0s" to MaxDelay. It is rounded up to the millisecond. See DelayFor.
	DelayKey = "delay"

	// DelayUntilKey is the metadata key for the instant, by the clock of the Redis server, before
	// which the message is not delivered. The value is RFC 3339, with a fraction of a second if
	// wanted, at most MaxDelay ahead. It is rounded up to the millisecond. A past instant means
	// now. A message with DelayKey too is refused. See DelayUntil.
	DelayUntilKey = "delay_until"

	// MaxDelay is the longest delay: 100 years of 365 days. Longer ones are refused as mistakes,
	// such as nanoseconds taken for milliseconds.
	MaxDelay = 100 * 365 * 24 * time.Hour
)

// ErrInvalidDelay is wrapped by the error for a message whose delay is malformed, negative,
// longer than MaxDelay or given twice. The error names key and value.
var ErrInvalidDelay = errors.New("invalid delay")

const (
	wantDelay      = `want a duration from "0s" to "876000h" (100 years), such as "15m" or "250ms"`
	wantDelayUntil = `want an RFC 3339 time at most 100 years ahead, such as "2006-01-02T15:04:05Z"`
	wantDelayedFor = `want a duration, such as "15m0s"`
)

// DelayFor delays msg by d after it is published. It replaces an earlier DelayFor or DelayUntil.
// Publish refuses a negative d and one above MaxDelay.
func DelayFor(msg *message.Message, d time.Duration) {
	delete(msg.Metadata, DelayUntilKey)
	setKey(msg, DelayKey, d.String())
}

// DelayUntil delays msg until t by the clock of the Redis server. It replaces an earlier DelayFor
// or DelayUntil. Publish refuses a t more than MaxDelay ahead.
func DelayUntil(msg *message.Message, t time.Time) {
	delete(msg.Metadata, DelayKey)
	setKey(msg, DelayUntilKey, t.UTC().Format(time.RFC3339Nano))
}

// due says when a message is due by the clock of the Redis server: an instant on it, or a time
// from its now. Which of the two is kept apart because only the server may compare an instant
// with its clock. The zero value is now.
type due struct {
	absolute bool          // at counts, else relative
	relative time.Duration // 0 to MaxDelay, whole milliseconds
	at       int64         // Unix milliseconds, not negative
}

// publishDue returns when a message that is being published is due. now is the publisher's clock.
func publishDue(msg *message.Message, now time.Time) (due, error) {
	d, set, err := ownDue(msg.Metadata, now)
	if !set {
		d, set, err = watermillDue(msg.Metadata, now)
	}
	if !set {
		d, err = contextDue(msg.Context(), now)
	}
	return d, err
}

// Delayed tells whether Publish would keep msg in Redis for some time: whether it has a delay, in one of the
// forms that Publish knows, other than none at all ("0s"). An instant counts as a delay even if it is past, as
// only the Redis server can tell. Errors wrap ErrInvalidDelay, and are those of Publish.
func Delayed(msg *message.Message) (bool, error) {
	d, err := publishDue(msg, time.Now())
	return d != due{}, err
}

// retryDue returns when a nacked message is due again, if its metadata says so; set is false if
// not. A delivered message has no delay keys, so those here were set by its handler or a
// middleware. now is the consumer's clock.
func retryDue(metadata message.Metadata, now time.Time) (d due, set bool, err error) {
	d, set, err = ownDue(metadata, now)
	if !set {
		d, set, err = watermillDue(metadata, now)
	}
	return d, set, err
}

// ownDue reads DelayKey and DelayUntilKey.
func ownDue(metadata message.Metadata, now time.Time) (d due, set bool, err error) {
	delayText, hasDelay := metadata[DelayKey]
	untilText, hasUntil := metadata[DelayUntilKey]
	switch {
	case hasDelay && hasUntil:
		return due{}, true, fmt.Errorf("%w: metadata %s is %s and %s is %s: want one of them",
			ErrInvalidDelay, DelayKey, quoteClipped(delayText), DelayUntilKey, quoteClipped(untilText))
	case hasDelay:
		duration, ok := parseDuration(delayText)
		if !ok || duration < 0 || duration > MaxDelay {
			return due{}, true, invalidDelay(DelayKey, delayText, wantDelay)
		}
		return dueIn(duration), true, nil
	case hasUntil:
		until, ok := parseTime(untilText)
		if !ok || until.After(now.Add(MaxDelay)) {
			return due{}, true, invalidDelay(DelayUntilKey, untilText, wantDelayUntil)
		}
		return dueAt(until), true, nil
	}
	return due{}, false, nil
}

// watermillDue reads the two keys of Watermill's delay component. The duration without the
// instant is no delay: it is what a delivery leaves for DelayOnError to count on from.
func watermillDue(metadata message.Metadata, now time.Time) (d due, set bool, err error) {
	untilText, hasUntil := metadata[delay.DelayedUntilKey]
	if !hasUntil {
		return due{}, false, nil
	}
	until, ok := parseTime(untilText)
	if !ok || until.After(now.Add(MaxDelay)) {
		return due{}, true, invalidDelay(delay.DelayedUntilKey, untilText, wantDelayUntil)
	}
	forText, hasFor := metadata[delay.DelayedForKey]
	if !hasFor {
		return dueAt(until), true, nil
	}
	duration, ok := parseDuration(forText)
	if !ok {
		return due{}, true, invalidDelay(delay.DelayedForKey, forText, wantDelayedFor)
	}
	// Watermill cuts the instant to whole seconds and keeps the duration exact, both by the clock
	// that now is from. The instant bounds what is left of the duration: for a fresh message that
	// is all of it, for one that waited in an outbox it is less. A past instant, which comes with a
	// negative duration, is now.
	duration = max(duration, until.Sub(now))
	duration = min(duration, until.Add(time.Second).Sub(now), MaxDelay)
	return dueIn(max(duration, 0)), true, nil
}

// watermillDelayKey is the key under which delay.WithContext puts its value. It is not exported,
// so Watermill's own publisher is made to ask for it, once. It is nil, and such delays are not seen, if
// a version of Watermill keeps them in another way; a test watches for that.
var watermillDelayKey = func() any {
	asked := &keyRecorder{Context: context.Background()}
	publisher, err := delay.NewPublisher(noPublisher{}, delay.PublisherConfig{AllowNoDelay: true})
	if err != nil {
		return nil
	}
	_ = publisher.Publish("", message.NewMessageWithContext(asked, "", nil)) // to nowhere
	return asked.key
}()

// keyRecorder is a context that remembers the key it was last asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

type noPublisher struct{}

func (noPublisher) Publish(string, ...*message.Message) error { return nil }
func (noPublisher) Close() error                              { return nil }

// contextDelay returns what delay.WithContext put into ctx, if it did.
func contextDelay(ctx context.Context) (delay.Delay, bool) {
	if watermillDelayKey == nil {
		return delay.Delay{}, false
	}
	found, ok := ctx.Value(watermillDelayKey).(delay.Delay)
	return found, ok
}

// contextDue is when a message with this context is due by it.
func contextDue(ctx context.Context, now time.Time) (due, error) {
	found, ok := contextDelay(ctx)
	if !ok {
		return due{}, nil
	}
	// Only Watermill can read its Delay, so it writes it into a message, one to throw away because
	// the real one is not to be changed.
	stamped := &message.Message{Metadata: make(message.Metadata)}
	delay.Message(stamped, found)
	d, _, err := watermillDue(stamped.Metadata, now)
	return d, err
}

func dueIn(d time.Duration) due {
	rounded := d.Truncate(time.Millisecond)
	if rounded < d {
		rounded += time.Millisecond
	}
	return due{relative: rounded}
}

func dueAt(t time.Time) due {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return due{absolute: true, at: max(ms, 0)}
}

func invalidDelay(key, value, want string) error {
	return invalidValue(ErrInvalidDelay, key, value, want)
}

// queued is the due time in the pipeline's terms.
func (d due) queued() queue.Due {
	if d.absolute {
		return queue.At(time.UnixMilli(d.at))
	}
	return queue.In(d.relative)
}
