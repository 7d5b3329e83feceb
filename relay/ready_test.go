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
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func TestRelayIsReadyWhileItIsSubscribed(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		r := newRelay(t, s, newDestination(nil))
		require.ErrorContains(t, r.Ready(), "relay is not running")
		stop := run(t, r)
		require.Eventually(t, func() bool { return r.Ready() == nil }, soon, time.Millisecond)
		require.NoError(t, stop())
		require.ErrorContains(t, r.Ready(), "relay is not running")
	})
}

// newStream returns a topic with a stream and a message, and its publisher.
func newStream(t *testing.T, s redistest.Server) (string, *redisdelay.Publisher) {
	t.Helper()
	stream := topic + s.Prefix
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: s.Client, KeyPrefix: s.Prefix, Stream: &redisdelay.StreamConfig{DisableScheduler: true},
	}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	publish(t, p, stream, newMessage("x", never))
	return stream, p
}

// A second, different fault is logged too. During the outage the relay could not see the stream.
func TestRelayLogsWhyItCannotSubscribe(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		stream, _ := newStream(t, s)

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

	})
}

// If such a topic is just being created or was deleted, a subscription would make it one without a
// stream.
func TestRelayOfAllTopicsIgnoresTopicsWithAStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		stream, p := newStream(t, s)
		keys := queue.NewKeys(s.Prefix, stream)

		to := newDestination(nil)
		r := newRelay(t, s, to, func(c *relay.Config) { c.Topics = nil })
		run(t, r)
		require.Eventually(t, func() bool { return r.Ready() == nil }, soon, time.Millisecond)
		require.NoError(t, operate.NewTopic(servers.MustClient(s.Client), s.Prefix, stream).Erase(t.Context()))
		for _, name := range []string{stream, "plain"} { // a name alone, of the one that was and of one that comes
			require.NoError(t, s.Client.SAdd(t.Context(), queue.Registry(s.Prefix), name).Err())
			require.NoError(t, s.Client.Publish(t.Context(), queue.NewTopics(s.Prefix, 0), name).Err())
		}
		publish(t, newPublisher(t, s), "plain", newMessage("z", 0))
		require.Equal(t, []string{"z"}, uuids(to.await(t, 1)), "the relay has seen both topics")
		require.Zero(t, s.Client.Exists(t.Context(), keys.Meta(), keys.Groups()).Val())
		require.NoError(t, r.Ready())
		publish(t, p, stream, newMessage("y", never))
		require.False(t, s.Client.HExists(t.Context(), keys.Groups(), relay.DefaultConsumerGroup).Val())
	})
}

func TestRelayOfAllTopicsIsNotReadyWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	require.NoError(t, client.ACLSetUser(t.Context(), "user", "on", ">secret", "~*", "&*", "+@all", "-sscan").Err())
	options := *client.(*redis.Client).Options()
	options.Username, options.Password = "user", "secret"
	user := redis.NewClient(&options)
	defer user.Close()
	logged := newLog()
	r, err := relay.New(relay.Config{Subscriber: redisdelay.SubscriberConfig{Client: user}, Destination: newDestination(nil)}, logged)
	require.NoError(t, err)
	run(t, r)
	wait(t, logged.errors, "that it may not")
	require.ErrorContains(t, r.Ready(), "registry of topics")
}
