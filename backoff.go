package redisdelay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// BackoffKey is the metadata key that sets, for one message, how long it waits after a Nack, or after a handler that
// ran for too long, instead of the subscriber's Backoff: "30s", each time; or "1s..10m", about one second after the
// first delivery, twice as long after each further one, and about ten minutes at most, as ExponentialBackoff does.
// Durations are from "0s" to MaxDelay. See SetBackoff.
const BackoffKey = "backoff"

const wantBackoff = `want a duration, such as "30s", or two that do not fall, such as "1s..10m", up to "876000h" (100 years)`

// SetBackoff says how long msg waits after a Nack: about initial after the first delivery, twice as long after
// each further one, and about max at most. If the two are the same, it waits exactly that long each time.
// Publish refuses negative ones, ones above MaxDelay, and a max below initial.
func SetBackoff(msg *message.Message, initial, max time.Duration) {
	value := initial.String()
	if max != initial {
		value += ".." + max.String()
	}
	setKey(msg, BackoffKey, value)
}

// ownBackoff reads BackoffKey; set is false if it is not there.
func ownBackoff(metadata message.Metadata) (backoff func(delivery int) time.Duration, set bool, err error) {
	value, set := metadata[BackoffKey]
	if !set {
		return nil, false, nil
	}
	first, last, exponential := strings.Cut(value, "..")
	initial, ok := parseDuration(first)
	highest := initial
	if exponential && ok {
		highest, ok = parseDuration(last)
	}
	if !ok || initial < 0 || highest < initial || highest > MaxDelay {
		return nil, true, invalidValue(ErrInvalidMetadata, BackoffKey, value, wantBackoff)
	}
	if exponential {
		return ExponentialBackoff(initial, highest), true, nil
	}
	return func(int) time.Duration { return initial }, true, nil
}

// defaultBackoff is what a Subscriber uses that is given none.
var defaultBackoff = ExponentialBackoff(time.Second, 10*time.Minute)

// withoutPanic returns a Backoff that uses the default where the given one panics: that would end the process.
func withoutPanic(backoff func(delivery int) time.Duration, logger watermill.LoggerAdapter) func(delivery int) time.Duration {
	return func(delivery int) (wait time.Duration) {
		defer func() {
			if p := recover(); p != nil {
				logger.Error("Backoff panicked, using the default", fmt.Errorf("panic: %v", p), watermill.LogFields{"delivery": delivery})
				wait = defaultBackoff(delivery)
			}
		}()
		return backoff(delivery)
	}
}

// ExponentialBackoff returns a SubscriberConfig.Backoff that waits about initial after the first
// delivery, twice as long after each further one, and about max at most. Each wait is spread by a
// fifth either way, so that what failed together is not retried together.
func ExponentialBackoff(initial, max time.Duration) func(delivery int) time.Duration {
	return func(delivery int) time.Duration {
		if initial <= 0 {
			return 0
		}
		wait := min(float64(initial)*math.Pow(2, float64(delivery-1)), float64(max))
		return time.Duration(min(wait*(0.8+0.4*rand.Float64()), float64(MaxDelay)))
	}
}
