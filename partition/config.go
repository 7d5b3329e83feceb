package partition

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// checkPartitions checks a number of partitions that has no default.
func checkPartitions(n int) error {
	if n < 1 || n > MaxPartitions {
		return field.Invalid("Partitions", "is %d; it has to be 1 to %d", n, MaxPartitions)
	}
	return nil
}

// checkConfigured checks a number of partitions that may be 0: that in Redis.
func checkConfigured(n int) error {
	if n == 0 {
		return nil
	}
	return checkPartitions(n)
}

func componentLogger(logger watermill.LoggerAdapter) watermill.LoggerAdapter {
	return guard.Logger(logger).With(watermill.LogFields{"component": "redisdelay.partition"})
}
