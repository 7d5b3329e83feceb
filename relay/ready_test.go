package relay_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func TestRelayIsReadyWhileItIsSubscribed(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		r := newRelay(t, s, newDestination(nil))
		require.ErrorContains(t, r.Ready(), "it does not run")
		stop := run(t, r)
		require.Eventually(t, func() bool { return r.Ready() == nil }, soon, time.Millisecond)
		require.NoError(t, stop())
		require.ErrorContains(t, r.Ready(), "it does not run")
	})
}

// What is behind a failure is said, too: while Redis was away, nobody could know that the topic is not to be relayed.
func TestRelayThatCannotSubscribeSaysWhy(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		stream := topic + s.Prefix
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
			Client: s.Client, KeyPrefix: s.Prefix, Stream: &redisdelay.StreamConfig{DisableScheduler: true},
		}, nil)
		require.NoError(t, err)
		defer p.Close()
		publish(t, p, stream, newMessage("x", never))

		var there atomic.Bool
		options := *s.Client.(*redis.Client).Options()
		options.MaxRetries, options.DialerRetries = -1, 1
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !there.Load() {
				return nil, errors.New("connection refused")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		client := redis.NewClient(&options)
		defer client.Close()
		logged := newLog()
		r, err := relay.New(relay.Config{
			Subscriber: redisdelay.SubscriberConfig{Client: client, KeyPrefix: s.Prefix}, Topics: []string{stream}, Destination: newDestination(nil),
		}, logged)
		require.NoError(t, err)
		run(t, r)
		wait(t, logged.errors, "that Redis is away")
		require.ErrorContains(t, r.Ready(), stream)
		there.Store(true)
		wait(t, logged.errors, "that the topic has a stream")
		require.ErrorIs(t, r.Ready(), redisdelay.ErrTopicMode)

		all, err := relay.New(relay.Config{
			Subscriber: redisdelay.SubscriberConfig{Client: client, KeyPrefix: s.Prefix}, Destination: newDestination(nil),
		}, logged)
		require.NoError(t, err)
		run(t, all)
		wait(t, logged.errors, "that the topic has a stream")
		require.NoError(t, all.Ready(), "such topics are not for it")
	})
}
