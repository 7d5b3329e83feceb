package redisdelay

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
)

// ExponentialBackoff returns a SubscriberConfig.Backoff that waits about initial after the first
// delivery, twice as long after each further one, and about max at most. Each wait is spread by a
// fifth either way, so that messages which failed together are not retried together.
func ExponentialBackoff(initial, max time.Duration) func(delivery int) time.Duration {
	return meta.Exponential(initial, max).Wait
}

// defaultBackoff is the Backoff of a Subscriber that is given none.
var defaultBackoff = ExponentialBackoff(time.Second, 10*time.Minute)

// withoutPanic returns a Backoff that logs a panic of the given one and uses the default, because
// the panic would end the process.
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
