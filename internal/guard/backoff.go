package guard

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Backoff returns a user's Backoff that logs a panic or runtime.Goexit, and uses fallback instead.
func Backoff(user, fallback func(delivery int) time.Duration, logger watermill.LoggerAdapter) func(delivery int) time.Duration {
	return func(delivery int) (wait time.Duration) {
		if err := Apart("Backoff", func() { wait = user(delivery) }); err != nil {
			logger.Error("Backoff has failed, using the default", err, watermill.LogFields{"delivery": delivery})
			return fallback(delivery)
		}
		return wait
	}
}
