package redisdelay_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// While a closing subscription waits for its handler, it is woken no more, though it had a free
// place.
func TestAClosingSubscriptionLeavesWakeUpsToOthers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		sub := newSubscriber(t, s, inFlight(10))
		closing := subscribeTo(t, sub, "t")
		publish(t, p, "t", "one")
		held := receive(t, closing)
		idle := subscribe(t, s, "t", inFlight(10))
		waiters := queue.NewKeys(s.Prefix, "t").Waiters(redisdelay.DefaultConsumerGroup)
		waiting := func(n int64) func() bool {
			return func() bool { return s.Client.ZCard(ctx, waiters).Val() == n }
		}
		eventually(t, waiting(2), "both would be woken")

		closed := begin(sub.Close)
		eventually(t, waiting(1), "only the other is woken")
		require.NoError(t, held.Context().Err(), "at once, not when the handlers are given up")
		publish(t, p, "t", "two")
		require.Equal(t, []string{"two"}, consume(t, idle, 1))
		held.Ack()
		require.NoError(t, wait(t, closed, "Close"))
	})
}

// Limits that mean "none" do not overflow where they are added to something.
func TestTheLargestLimitsAreLimitsToo(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		sub := newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.MaxInFlight = math.MaxInt
			c.MaxExtension = math.MaxInt64
			c.CloseTimeout = math.MaxInt64
		})
		messages := subscribeTo(t, sub, "t")
		for i := range 5 {
			publish(t, p, "t", "one", "two")
			require.Len(t, consume(t, messages, 2), 2, "round %d", i)
		}
		publish(t, p, "t", "held")
		held := receive(t, messages)
		closed := begin(sub.Close)
		requireOpen := time.After(50 * time.Millisecond)
		select {
		case err := <-closed:
			require.Fail(t, "Close did not wait", "%v", err)
		case <-requireOpen:
		}
		held.Ack()
		require.NoError(t, wait(t, closed, "Close"))
	})
}

func TestANilMessageIsRefused(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		require.ErrorIs(t, p.Publish("t", text("fine"), nil), redisdelay.ErrNilMessage)
		require.Empty(t, keysOf(t, s))
	})
}

type unmarshaler func(data []byte) (*message.Message, error)

func (u unmarshaler) Unmarshal(_ string, data []byte) (*message.Message, error) { return u(data) }

func TestAnUnmarshalerMayReturnAMessageOfItsOwnMaking(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) {
			c.Unmarshaler = unmarshaler(func(data []byte) (*message.Message, error) {
				return &message.Message{Payload: data}, nil
			})
		})
		publish(t, p, "t", "one", "two")
		require.Len(t, consume(t, messages, 2), 2)
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the acks were seen")
	})
}

// The subscription may be busy with the next message then, and not have noticed.
func TestASettlementBeforeCloseTimeoutCounts(t *testing.T) {
	for how, c := range map[string]struct {
		settle func(*message.Message) bool
		left   state
	}{
		"ack":  {(*message.Message).Ack, state{Bodies: 1, Unack: 1}},
		"nack": {(*message.Message).Nack, state{Bodies: 2, Ready: 1, Unack: 1}},
	} {
		t.Run(how, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				busy, free := make(chan struct{}), make(chan struct{})
				sub := newSubscriber(t, s, inFlight(2), leaseOf(never), closingWithin(100*time.Millisecond), func(c *redisdelay.SubscriberConfig) {
					c.Unmarshaler = unmarshaler(func(data []byte) (*message.Message, error) {
						msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("t", data)
						if err == nil && string(msg.Payload) == "two" {
							close(busy)
							<-free
						}
						return msg, err
					})
				})
				messages := subscribeTo(t, sub, "t")
				publish(t, newPublisher(t, s), "t", "one", "two")
				one := receive(t, messages)
				wait(t, busy, "the next message")
				require.True(t, c.settle(one))
				closed := begin(sub.Close)
				wait(t, one.Context().Done(), "the end of CloseTimeout")
				require.NotErrorIs(t, context.Cause(one.Context()), redisdelay.ErrClosed)
				err := wait(t, closed, "Close")
				close(free) // earlier it might go back
				require.NoError(t, err)
				require.Equal(t, "1", s.Client.HGet(ctx, queue.NewKeys(s.Prefix, "t").Stats(redisdelay.DefaultConsumerGroup), "given_up").Val(),
					"the one that was in the Unmarshaler")
				require.Equal(t, c.left, stateOf(t, s, "t"))
			})
		})
	}
}

func TestAnUnmarshalerThatReturnsNothingBuriesTheMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) {
			c.Unmarshaler = unmarshaler(func([]byte) (*message.Message, error) { return nil, nil })
		})
		publish(t, p, "t", "one")
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "it is dead")
	})
}

// untold is a context that has ended, and calls nobody for it yet.
type untold struct{ context.Context }

func (untold) AfterFunc(func()) (stop func() bool) { return func() bool { return true } }
func (untold) Value(any) any                       { return nil } // by which AfterFunc knows the contexts of its own package

// From the end of Subscribe's context on nothing more is claimed, even if nobody was told of it
// yet.
func TestAMessageNackedAfterTheEndOfTheContextDoesNotComeAgain(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		cancellable, cancel := context.WithCancel(ctx)
		defer cancel()
		messages, err := newSubscriber(t, s, inFlight(2)).Subscribe(untold{cancellable}, "t")
		require.NoError(t, err)
		publish(t, newPublisher(t, s), "t", "a", "b")
		a, b := receive(t, messages), receive(t, messages)
		cancel()
		require.True(t, a.Nack())
		require.True(t, b.Ack())
		requireClosed(t, messages)
		require.Equal(t, state{Bodies: 1, Ready: 1}, stateOf(t, s, "t"))
	})
}
