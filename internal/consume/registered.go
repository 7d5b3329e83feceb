package consume

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// LogRegistered logs what a group that was made got, or did not get, of what came before it.
func LogRegistered(logger watermill.LoggerAdapter, got queue.Registered, fields watermill.LogFields) {
	with := func(n int) watermill.LogFields { return fields.Add(watermill.LogFields{"messages": n}) }
	if got.Taken > 0 {
		logger.Info("The new consumer group gets what the topic's first group got before", with(got.Taken))
	}
	if got.Missed > 0 {
		logger.Info("The new consumer group gets nothing of what the topic's first group got before: it is too much, or the window is over", with(got.Missed))
	}
	if got.Waited > 0 {
		logger.Info("The first consumer group of the topic gets what waited without any group", with(got.Waited))
	}
}
