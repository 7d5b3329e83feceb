package redisdelay

import (
	"time"

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
