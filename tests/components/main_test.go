// Package components has the tests of Watermill's components that need modules which the library does
// not: in a module of their own, so that it does not get them.
package components

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// What the tests have in common.

const (
	// patience is how long the tests wait for what has to happen.
	patience = 30 * time.Second

	// prompt is how late a message may be that somebody is there to deliver, on a busy machine.
	prompt = 2500 * time.Millisecond
)

// expectDrained checks, when all is closed, that every message is settled and has left nothing behind.
func expectDrained(t testing.TB, s redistest.Server) {
	s.OnCleanup(func() {
		if !t.Failed() {
			queuetest.CheckDrained(t, s.Client, s.Prefix)
		}
	})
}

func newPublisher(t testing.TB, s redistest.Server) *redisdelay.Publisher {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	return publisher
}

func newSubscriber(t testing.TB, s redistest.Server, change func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix}
	if change != nil {
		change(&config)
	}
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, subscriber.Close()) })
	return subscriber
}

func newRouter(t testing.TB) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

// start runs a router until the test ends.
func start(t testing.TB, router *message.Router) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.FailNow(t, "the router does not run", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "the router does not run")
	}
	t.Cleanup(func() {
		assert.NoError(t, router.Close())
		assert.NoError(t, <-ended)
	})
}

// sighting is what a handler was given.
type sighting struct {
	what     string // that the test calls it
	metadata message.Metadata
	delivery redisdelay.Delivery
	at       time.Time
}

type sightings chan sighting

func newSightings() sightings { return make(sightings, 1000) }

func (s sightings) record(what string, ctx context.Context, metadata message.Metadata) sighting {
	delivery, _ := redisdelay.DeliveryFromContext(ctx)
	seen := sighting{what, maps.Clone(metadata), delivery, time.Now()}
	s <- seen
	return seen
}

func (s sightings) next(t testing.TB) sighting {
	t.Helper()
	select {
	case seen := <-s:
		return seen
	case <-time.After(patience):
		require.FailNow(t, "no handler was called")
		return sighting{}
	}
}

// requireDelayed checks that a message came when its delay was over, counted from a moment before it was
// published.
func requireDelayed(t testing.TB, seen sighting, before time.Time, d time.Duration) {
	t.Helper()
	require.False(t, seen.delivery.DueAt.Before(before.Add(d).Truncate(time.Millisecond)), "%s is due early", seen.what)
	require.False(t, seen.at.Before(seen.delivery.DueAt), "%s came early", seen.what)
	require.Less(t, seen.at.Sub(before), d+2*prompt, "%s came late", seen.what)
}

func awaitGone(t testing.TB, s redistest.Server, topic string) {
	t.Helper()
	messages := queue.NewKeys(s.Prefix, topic).Messages()
	require.Eventually(t, func() bool {
		n, err := s.Client.Exists(t.Context(), messages).Result()
		return err == nil && n == 0
	}, patience, time.Millisecond)
}
