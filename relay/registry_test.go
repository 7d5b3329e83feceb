package relay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// Meanwhile the registry is read once a second.
func TestRelayOfAllTopicsLogsAnOutageOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, refused := testkit.Unreachable(t)
		logged := log{errors: make(chan string, 1000)}
		r, err := relay.New(relay.Config{Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil)}, logged)
		require.NoError(t, err)
		running, stop := context.WithCancel(t.Context())
		ended := testkit.Begin(func() error { return r.Run(running) })
		time.Sleep(5 * time.Minute)
		stop()
		require.NoError(t, <-ended)
		require.Greater(t, refused.Load(), int32(100))
		require.Len(t, logged.errors, 1)
		require.Equal(t, "Cannot read the registry of topics, trying again", <-logged.errors)
	})
}
