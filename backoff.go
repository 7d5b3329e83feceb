package redisdelay

import (
	"math"
	"math/rand/v2"
	"time"
)

// ExponentialBackoff returns a SubscriberConfig.Backoff that waits about initial after the first
// delivery, twice as long after each further one, and about max at most. Each wait is spread by a
// fifth either way, so that what failed together is not retried together.
func ExponentialBackoff(initial, max time.Duration) func(delivery int) time.Duration {
	return func(delivery int) time.Duration {
		wait := min(float64(initial)*math.Pow(2, float64(delivery-1)), float64(max), float64(MaxDelay))
		return time.Duration(wait * (0.8 + 0.4*rand.Float64()))
	}
}
