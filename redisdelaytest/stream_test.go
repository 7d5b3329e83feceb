package redisdelaytest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

func TestClockMovesMessagesIntoStreams(t *testing.T) {
	for name, config := range map[string]redisdelay.StreamConfig{"with a scheduler": {}, "without": {DisableScheduler: true}} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client(), Stream: &config}, nil)
			require.NoError(t, err)
			defer publisher.Close()
			require.NoError(t, publisher.Publish(topic, delayed("x", 24*time.Hour)))
			length := func() int64 { return server.Client().XLen(ctx, topic).Val() }
			server.Advance(23 * time.Hour)
			require.Zero(t, length())
			server.Advance(time.Hour)
			require.EqualValues(t, 1, length())
		})
	}
}
