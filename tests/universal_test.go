package tests

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/testkit"
)

// suite is one run of Watermill's universal suite.
type suite struct {
	client      redis.UniversalClient
	prefix      string
	maxInFlight int
	delay       time.Duration // of every message
}

var (
	ordered = tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
	}
	parallel = tests.Features{
		ConsumerGroups: true,
		Persistent:     true,
	}
)

const (
	orderedInFlight  = 1
	parallelInFlight = 100
)

func TestUniversalOrdered(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		run(t, ordered, onServer(t, s, orderedInFlight, 0))
	})
}

func TestUniversalOrderedDelayed(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		run(t, ordered, onServer(t, s, orderedInFlight, time.Second))
	})
}

func TestUniversalParallel(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		run(t, parallel, onServer(t, s, parallelInFlight, 0))
	})
}

func TestUniversalParallelDelayed(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		run(t, parallel, onServer(t, s, parallelInFlight, time.Second))
	})
}

func onServer(t *testing.T, s redistest.Server, maxInFlight int, delay time.Duration) suite {
	s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
	return suite{client: s.Client, prefix: s.Prefix, maxInFlight: maxInFlight, delay: delay}
}

func run(t *testing.T, features tests.Features, s suite) {
	tests.TestPubSub(t, features, s.pubSub, s.pubSubInGroup)
}

func (s suite) pubSub(t *testing.T) (message.Publisher, message.Subscriber) {
	return s.pubSubInGroup(t, "")
}

// leaving is a Subscriber that may be closed while a message is in hand, as the suite does to see
// the message's context end. The Subscriber's Close returns an error then.
type leaving struct{ *redisdelay.Subscriber }

func (s leaving) Close() error {
	if err := s.Subscriber.Close(); !errors.Is(err, redisdelay.ErrGivenUp) {
		return err
	}
	return nil
}

// pubSubInGroup has defaults but for what the suite needs: it nacks 300 times over 50 messages, and
// waits for each redelivery. It closes with a message in hand, and waits 15 seconds for the end of
// its context.
func (s suite) pubSubInGroup(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	logger := watermill.NopLogger{}
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    s.client,
		KeyPrefix: s.prefix,
	}, logger)
	require.NoError(t, err)
	made, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        s.client,
		KeyPrefix:     s.prefix,
		ConsumerGroup: group,
		MaxInFlight:   s.maxInFlight,
		MaxDeliveries: -1,
		Backoff:       func(int) time.Duration { return 0 },
		CloseTimeout:  10 * time.Second,
	}, logger)
	require.NoError(t, err)
	subscriber := leaving{made}
	// Not all of the suite's tests close what they had made.
	t.Cleanup(func() {
		require.NoError(t, publisher.Close())
		require.NoError(t, subscriber.Close())
	})
	return testkit.Delaying{Publisher: publisher, Delay: s.delay}, subscriber
}
