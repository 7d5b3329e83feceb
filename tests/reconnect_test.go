//go:build !race

package tests

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The server is killed and started again under load, with everything written to its disk first.
//
// It is left out of runs with -race, because the suite's TestReconnect itself reads what it has
// published while another of its goroutines still notes it.
func TestUniversalReconnect(t *testing.T) {
	for name, s := range map[string]suite{
		"ordered":          {maxInFlight: orderedInFlight},
		"ordered delayed":  {maxInFlight: orderedInFlight, delay: time.Second},
		"parallel":         {maxInFlight: parallelInFlight},
		"parallel delayed": {maxInFlight: parallelInFlight, delay: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			s.client = server.Client(t)
			s.prefix = redisdelay.DefaultKeyPrefix
			features := parallel
			if s.maxInFlight == orderedInFlight {
				features = ordered
			}
			features.RestartServiceCommand = server.RestartCommand()
			reconnect := tests.TestContext{TestID: tests.NewTestID(), Features: features}
			tests.TestReconnect(t, reconnect, func(t *testing.T) (message.Publisher, message.Subscriber) {
				publisher, subscriber := s.pubSub(t)
				noted := &noting{Publisher: publisher, all: make(chan struct{})}
				held, err := message.MessageTransformSubscriberDecorator(noted.holdLast)(subscriber)
				require.NoError(t, err)
				return noted, held
			})
			queuetest.Check(t, s.client, s.prefix)
		})
	}
}

// noting holds the suite's last message until the suite has noted that it was published, which it
// does after Publish has returned, and without waiting for it before it compares.
type noting struct {
	message.Publisher
	published, received atomic.Int64
	all                 chan struct{} // closed when all are published
}

const messagesOfReconnect = 10_000

func (p *noting) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err == nil && p.published.Add(int64(len(messages))) == messagesOfReconnect {
		close(p.all)
	}
	return err
}

func (p *noting) holdLast(*message.Message) {
	if p.received.Add(1) < messagesOfReconnect {
		return
	}
	select {
	case <-p.all:
	case <-time.After(10 * time.Second):
	}
	time.Sleep(20 * time.Millisecond) // the suite does not say when it has noted it
}
