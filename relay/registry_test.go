package relay_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// Meanwhile the registry is read once a second.
func TestRelayOfAllTopicsLogsAnOutageOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			tries.Add(1)
			return nil, errors.New("connection refused")
		}})
		defer time.Sleep(time.Minute) // until what the client has begun has ended
		defer client.Close()
		logged := log{errors: make(chan string, 1000)}
		r, err := relay.New(relay.Config{Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil)}, logged)
		require.NoError(t, err)
		running, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(running) }()
		time.Sleep(5 * time.Minute)
		stop()
		require.NoError(t, <-ended)
		require.Greater(t, tries.Load(), int32(100))
		require.Len(t, logged.errors, 1)
		require.Equal(t, "Cannot read the registry of topics, trying again", <-logged.errors)
	})
}
