package redisdelay_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// Types of users that embed a client.
type (
	singleClient    struct{ *redis.Client }
	clusterClient   struct{ *redis.ClusterClient }
	ringClient      struct{ *redis.Ring }
	universalClient struct{ redis.UniversalClient }
)

// constructors make, by their names, one of each thing that takes a client.
func constructors(t *testing.T) map[string]func(redis.UniversalClient) error {
	destination, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: clientOf(t, "127.0.0.1:1")}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, destination.Close()) })
	return map[string]func(redis.UniversalClient) error{
		"NewPublisher": func(client redis.UniversalClient) error {
			_, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
			return err
		},
		"NewSubscriber": func(client redis.UniversalClient) error {
			_, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
			return err
		},
		"scheduler.New": func(client redis.UniversalClient) error {
			_, err := scheduler.New(scheduler.Config{Client: client}, nil)
			return err
		},
		"admin.New": func(client redis.UniversalClient) error {
			_, err := admin.New(admin.Config{Client: client})
			return err
		},
		"relay.New": func(client redis.UniversalClient) error {
			_, err := relay.New(relay.Config{Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: destination}, nil)
			return err
		},
	}
}

func TestAClientIsTakenOrRefusedByItsKind(t *testing.T) {
	client := clientOf(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	fromReplicas := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true})
	t.Cleanup(func() { _, _ = cluster.Close(), fromReplicas.Close() })
	for name, construct := range constructors(t) {
		for _, usable := range []redis.UniversalClient{client, singleClient{client}, cluster, &clusterClient{cluster}} {
			require.NoError(t, construct(usable), "%s with %T", name, usable)
		}
		for _, refused := range []struct {
			client redis.UniversalClient
			says   string
		}{
			{nil, "is nil"},
			{(*singleClient)(nil), "is a nil *redisdelay_test.singleClient"},
			{&clusterClient{}, "embeds nil"},
			{newRing(t), "*redis.Ring"},
			{ringClient{newRing(t)}, "*redis.Ring"},
			{clusterClient{fromReplicas}, "reads from replicas"},
			{universalClient{client}, "pass a *redis.Client, a *redis.ClusterClient, or a struct that embeds one"},
		} {
			err := construct(refused.client)
			require.ErrorContains(t, err, "Client ", "%s with %T", name, refused.client)
			require.ErrorContains(t, err, refused.says, "%s with %T", name, refused.client)
		}
	}
}

func TestAWrappedClientPublishesAndSubscribes(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		s.Client = &singleClient{s.Client.(*redis.Client)}
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", "x")
		require.Equal(t, []string{"x"}, consume(t, messages, 1))
	})
}

func TestReplicasConfirmToAWrappedClient(t *testing.T) {
	s, _, replicas := replicated(t, 1)
	s.Client = singleClient{s.Client.(*redis.Client)}
	publish(t, newPublisher(t, s, waitingFor(1, never)), "t", "x")
	require.Equal(t, 1, bodiesOn(t, replicas[0], "t"))
	require.Equal(t, []string{"x"}, consume(t, subscribe(t, s, "t"), 1))
}

func TestReplicasConfirmToAWrappedClusterClient(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s := redistest.Server{Client: &clusterClient{cluster.Client(t)}, Prefix: "test"}
	p := newPublisher(t, s, waitingFor(1, never))
	for _, topic := range []string{"a", "b", "c", "d"} { // on several nodes
		publish(t, p, topic, "x")
		_, replica := cluster.Owner("{" + topic + "}")
		require.Equal(t, 1, bodiesOn(t, replica, topic))
		require.Equal(t, []string{"x"}, consume(t, subscribe(t, s, topic), 1))
	}
}
