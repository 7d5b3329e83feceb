package admin_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

const (
	topic = "orders"

	// soon is long enough for any expected event, even on a slow machine.
	soon = 30 * time.Second
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
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() {
			if !t.Failed() {
				queuetest.Check(t, s.Client, s.Prefix)
			}
		})
		test(t, setupOn(t, s))
	})
}

func setupOn(t testing.TB, s redistest.Server) *setup {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return &setup{Server: s, admin: a, keys: queue.NewKeys(s.Prefix, topic)}
}

func (s *setup) publisher(t testing.TB, change ...func(*redisdelay.PublisherConfig)) *redisdelay.Publisher {
	t.Helper()
	config := redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}
	for _, f := range change {
		f(&config)
	}
	p, err := redisdelay.NewPublisher(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (s *setup) subscriber(t testing.TB, group string, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, ConsumerGroup: group, CloseTimeout: 2 * time.Second}
	for _, f := range change {
		f(&config)
	}
	sub, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

func (s *setup) register(t testing.TB, groups ...string) {
	t.Helper()
	for _, g := range groups {
		require.NoError(t, s.subscriber(t, g).SubscribeInitialize(topic))
	}
}

func (s *setup) subscribe(t testing.TB, group string, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	messages, err := s.subscriber(t, group, change...).Subscribe(ctx, topic)
	require.NoError(t, err)
	return messages
}

func text(payload string) *message.Message {
	return message.NewMessage("uuid of "+payload, message.Payload(payload))
}

func delayed(payload string, d time.Duration) *message.Message {
	msg := text(payload)
	redisdelay.DelayFor(msg, d)
	return msg
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "the channel was closed")
		return msg
	case <-time.After(soon):
		require.FailNow(t, "no message came")
		return nil
	}
}

func eventually(t testing.TB, is func() bool, what string) {
	t.Helper()
	require.Eventually(t, is, soon, 2*time.Millisecond, what)
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
