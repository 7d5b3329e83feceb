package meta

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Due returns when msg is due if it is published now, by the publisher's clock. Metadata comes
// before a delay in the context, and the keys of this module come before those of Watermill.
func Due(msg *message.Message, now time.Time) (queue.Due, error) {
	due, set, err := Retry(msg.Metadata, now)
	if !set {
		due, err = contextDue(msg.Context(), now)
	}
	return due, err
}

// Retry returns when a nacked message is due again, if its metadata says so; else set is false. A
// delivered message has no key that delays it, so its handler or a middleware has set the keys
// found here. now is the consumer's clock.
func Retry(metadata message.Metadata, now time.Time) (due queue.Due, set bool, err error) {
	due, set, err = ownDue(metadata, now)
	if !set {
		due, set, err = watermillDue(metadata, now)
	}
	return due, set, err
}

// DelayedFor returns the delay that Watermill's DelayOnError multiplies after the next delivery, or
// "".
func DelayedFor(metadata message.Metadata) string {
	d, ok := parseDuration(metadata.Get(delay.DelayedForKey))
	if !ok || metadata.Get(delay.DelayedUntilKey) == "" {
		return ""
	}
	return d.String()
}

// ownDue reads DelayKey and DelayUntilKey.
func ownDue(metadata message.Metadata, now time.Time) (due queue.Due, set bool, err error) {
	delayText, hasDelay := metadata[DelayKey]
	untilText, hasUntil := metadata[DelayUntilKey]
	switch {
	case hasDelay && hasUntil:
		return due, true, fmt.Errorf("%w: metadata %s is %s and %s is %s: want one of them",
			ErrInvalidDelay, DelayKey, quoteClipped(delayText), DelayUntilKey, quoteClipped(untilText))
	case hasDelay:
		duration, ok := parseDuration(delayText)
		if !ok || duration < 0 || duration > MaxDelay {
			return due, true, invalid(ErrInvalidDelay, DelayKey, delayText, wantDelay)
		}
		return in(duration), true, nil
	case hasUntil:
		until, err := dueTime(DelayUntilKey, untilText, now)
		if err != nil {
			return due, true, err
		}
		return queue.At(until), true, nil
	}
	return due, false, nil
}

// watermillDue reads the two keys of Watermill's delay component. The duration without the instant
// is no delay: it is what a delivery leaves for DelayOnError.
func watermillDue(metadata message.Metadata, now time.Time) (due queue.Due, set bool, err error) {
	untilText, hasUntil := metadata[delay.DelayedUntilKey]
	if !hasUntil {
		return due, false, nil
	}
	forText, hasFor := metadata[delay.DelayedForKey]
	if !hasFor {
		until, err := dueTime(delay.DelayedUntilKey, untilText, now)
		if err != nil {
			return due, true, err
		}
		return queue.At(until), true, nil
	}
	until, ok := parseTime(untilText)
	if !ok || until.After(now.Add(MaxDelay)) {
		return due, true, invalid(ErrInvalidDelay, delay.DelayedUntilKey, untilText, wantDelayUntil)
	}
	duration, ok := parseDuration(forText)
	if !ok {
		return due, true, invalid(ErrInvalidDelay, delay.DelayedForKey, forText, wantDelayedFor)
	}
	// This pair is that of delay.Until with an instant that was never set. The zero Delay has no
	// duration, and a publisher whose clock is wrong a short one.
	if until.Before(queue.Earliest) && duration < -365*24*time.Hour {
		return due, true, invalid(ErrInvalidDelay, delay.DelayedUntilKey, untilText, wantDelayUntil)
	}
	// Watermill cuts the instant to whole seconds and keeps the duration exact, both by the clock
	// that now is from. The instant bounds the rest of the duration: all of it for a fresh message,
	// less for a message that waited in an outbox. A past instant, which comes with a negative
	// duration, means now.
	duration = max(duration, until.Sub(now))
	duration = min(duration, until.Add(time.Second).Sub(now), MaxDelay)
	return in(max(duration, 0)), true, nil
}

// dueTime reads an instant from queue.Earliest on that is at most MaxDelay ahead.
func dueTime(key, value string, now time.Time) (time.Time, error) {
	t, ok := parseTime(value)
	if !ok || t.Before(queue.Earliest) || t.After(now.Add(MaxDelay)) {
		return t, invalid(ErrInvalidDelay, key, value, wantDelayUntil)
	}
	return t, nil
}

// in is queue.In, rounded up to the millisecond here, so that equal due times compare equal.
func in(d time.Duration) queue.Due {
	rounded := d.Truncate(time.Millisecond)
	if rounded < d {
		rounded += time.Millisecond
	}
	return queue.In(rounded)
}
