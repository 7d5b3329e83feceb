package redisdelay

import (
	"math"
	"time"
)

// Limit is a number of messages a second: see SubscriberConfig.Limit.
type Limit float64

// Every returns the limit of one message in each interval. An interval of 0 or less gives infinity,
// which Validate refuses.
func Every(interval time.Duration) Limit {
	if interval <= 0 {
		return Limit(math.Inf(1))
	}
	return Limit(time.Second) / Limit(interval)
}
