package admin_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

const (
	topic = "orders"
	soon  = testkit.Soon
)

// setup is a topic on a server of Both, or another.
type setup struct {
	redistest.Server
	admin *admin.Admin
	keys  queue.Keys
}

// both runs a test on both servers, and checks the state of Redis after it.
func both(t *testing.T, test func(t *testing.T, s *setup)) {
	t.Helper()
	testkit.Both(t, func(t *testing.T, s redistest.Server) { test(t, setupOn(t, s)) })
}

func setupOn(t testing.TB, s redistest.Server) *setup {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return &setup{Server: s, admin: a, keys: queue.NewKeys(s.Prefix, topic)}
}

func (s *setup) publisher(t testing.TB, change ...func(*redisdelay.PublisherConfig)) *redisdelay.Publisher {
	t.Helper()
	return testkit.NewPublisher(t, s.Server, change...)
}

func (s *setup) subscriber(t testing.TB, group string, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	usual := func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup, c.CloseTimeout = group, 2*time.Second }
	return testkit.NewSubscriber(t, s.Server, append([]func(*redisdelay.SubscriberConfig){usual}, change...)...)
}

func (s *setup) register(t testing.TB, groups ...string) {
	t.Helper()
	for _, g := range groups {
		require.NoError(t, s.subscriber(t, g).SubscribeInitialize(topic))
	}
}

func (s *setup) subscribe(t testing.TB, group string, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	return testkit.SubscribeTo(t, s.subscriber(t, group, change...), topic)
}

// The names that the tests call the kit by.
var (
	receive    = testkit.Receive
	eventually = testkit.Eventually
)

func text(payload string) *message.Message {
	return message.NewMessage("uuid of "+payload, message.Payload(payload))
}

func delayed(payload string, d time.Duration) *message.Message {
	return testkit.Delay(text(payload), d)
}

func (s *setup) stats(t testing.TB) admin.Stats {
	t.Helper()
	stats, err := s.admin.Stats(ctx, topic)
	require.NoError(t, err)
	return stats
}

func (s *setup) group(t testing.TB, name string) admin.GroupStats {
	t.Helper()
	for _, g := range s.stats(t).Groups {
		if g.Group == name {
			return g
		}
	}
	require.FailNow(t, "there is no group", name)
	return admin.GroupStats{}
}

// list returns all messages of a state, page by page.
func (s *setup) list(t testing.TB, group string, state admin.State) []admin.Message {
	t.Helper()
	var all []admin.Message
	q := admin.Query{State: state, Group: group, Limit: 100}
	for {
		page, err := s.admin.List(ctx, topic, q)
		require.NoError(t, err)
		all = append(all, page.Messages...)
		if q.Cursor = page.Next; q.Cursor == "" {
			return all
		}
	}
}

func messagesOf(n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = text("x")
	}
	return messages
}

// nowhere is a topic on a server that does not exist.
func nowhere(t *testing.T) *setup {
	client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("there is no server")
	}})
	t.Cleanup(func() { _ = client.Close() })
	return setupOn(t, redistest.Server{Client: client})
}
