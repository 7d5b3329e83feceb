// Package components has the tests of Watermill's components that need modules which the library
// does not: in a module of their own, so that it does not get them.
package components

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	// patience is how long the tests wait for what has to happen.
	patience = testkit.Soon

	// prompt is how late a message may be that somebody is there to deliver, on a busy machine.
	prompt = 2500 * time.Millisecond
)

// The names that the tests call the kit by.
var (
	expectDrained = testkit.Drained
	newRouter     = testkit.NewRouter
	start         = testkit.StartRouter
	awaitGone     = testkit.AwaitEmpty
)

func newPublisher(t testing.TB, s redistest.Server) *redisdelay.Publisher {
	t.Helper()
	return testkit.Closes(t, testkit.NewPublisher(t, s))
}

func newSubscriber(t testing.TB, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	return testkit.Closes(t, testkit.NewSubscriber(t, s, change...))
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
	return testkit.Wait(t, s, "a call of a handler")
}

// requireDelayed checks that a message came when its delay was over, counted from a moment before
// it was published.
func requireDelayed(t testing.TB, seen sighting, before time.Time, d time.Duration) {
	t.Helper()
	require.False(t, seen.delivery.DueAt.Before(before.Add(d).Truncate(time.Millisecond)), "%s is due early", seen.what)
	require.False(t, seen.at.Before(seen.delivery.DueAt), "%s came early", seen.what)
	require.Less(t, seen.at.Sub(before), d+2*prompt, "%s came late", seen.what)
}
