package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// suite is one run of Watermill's universal suite.
type suite struct {
	client      redis.UniversalClient
	prefix      string
	maxInFlight int
	delay       time.Duration // of every message
	partitions  int           // 0: on a topic without partitions
	single      bool          // each group has SingleActive

	closeTimeout time.Duration // of Subscribers; 0: the default, 29s
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
		on := onServer(t, s, orderedInFlight, 0)
		on.closeTimeout = 0
		run(t, ordered, on)
	})
}

func TestUniversalOrderedDelayed(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		run(t, ordered, onServer(t, s, orderedInFlight, time.Second))
	})
}

// One subscription of each group gets all, so the order needs no single subscriber.
func TestUniversalSingleActive(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		on := onServer(t, s, orderedInFlight, 0)
		on.single = true
		run(t, ordered, on)
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

// On the embedded server, the suites of partitions take minutes.
func TestUniversalPartitioned(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		on := onServer(t, s, parallelInFlight, 0)
		on.partitions = 5
		run(t, parallel, on)
	})
}

// With one place, the partitions take turns.
func TestUniversalPartitionedOneAtATime(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		on := onServer(t, s, orderedInFlight, 0)
		on.partitions = 3
		run(t, parallel, on)
	})
}

func TestUniversalPartitionedDelayed(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		on := onServer(t, s, parallelInFlight, time.Second)
		on.partitions = 5
		run(t, parallel, on)
	})
}

// One partition keeps the order of a plain topic.
func TestUniversalOnePartition(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		on := onServer(t, s, orderedInFlight, 0)
		on.partitions = 1
		run(t, ordered, on)
	})
}

func onServer(t *testing.T, s redistest.Server, maxInFlight int, delay time.Duration) suite {
	s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
	// Watermill's TestMessageCtx leaves a message unsettled, so Close takes all of CloseTimeout.
	return suite{client: s.Client, prefix: s.Prefix, maxInFlight: maxInFlight, delay: delay, closeTimeout: 5 * time.Second}
}

func run(t *testing.T, features tests.Features, s suite) {
	tests.TestPubSub(t, features, s.pubSub, s.pubSubInGroup)
}

func (s suite) pubSub(t *testing.T) (message.Publisher, message.Subscriber) {
	return s.pubSubInGroup(t, "")
}

// pubSubInGroup has defaults but for what the suite's own traffic needs: it nacks 300 times over 50
// messages, and waits for each redelivery.
func (s suite) pubSubInGroup(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	publishing := redisdelay.PublisherConfig{
		Client:    s.client,
		KeyPrefix: s.prefix,
	}
	subscribing := redisdelay.SubscriberConfig{
		Client:        s.client,
		KeyPrefix:     s.prefix,
		ConsumerGroup: group,
		CloseTimeout:  s.closeTimeout,
		SingleActive:  s.single,
		MaxInFlight:   s.maxInFlight,
		MaxDeliveries: -1,
		Backoff:       func(int) time.Duration { return 0 },
	}
	publisher, subscriber := s.make(t, publishing, subscribing)
	// Not all of the suite's tests close what they had made.
	t.Cleanup(func() {
		require.NoError(t, publisher.Close())
		require.NoError(t, subscriber.Close())
	})
	return testkit.Delaying{Publisher: publisher, Delay: s.delay}, subscriber
}

func (s suite) make(t *testing.T, publishing redisdelay.PublisherConfig, subscribing redisdelay.SubscriberConfig) (message.Publisher, message.Subscriber) {
	logger := watermill.NopLogger{}
	if s.partitions > 0 {
		p, err := partition.NewPublisher(partition.PublisherConfig{Partitions: s.partitions, Publisher: publishing}, logger)
		require.NoError(t, err)
		sub, err := partition.NewSubscriber(partition.SubscriberConfig{Partitions: s.partitions, Subscriber: subscribing}, logger)
		require.NoError(t, err)
		return p, sub
	}
	p, err := redisdelay.NewPublisher(publishing, logger)
	require.NoError(t, err)
	sub, err := redisdelay.NewSubscriber(subscribing, logger)
	require.NoError(t, err)
	return p, sub
}
