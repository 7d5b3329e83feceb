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
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
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
		"ack":  {(*message.Message).Ack, state{Bodies: 1, InHand: 1}},
		"nack": {(*message.Message).Nack, state{Bodies: 2, Ready: 1, InHand: 1}},
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

// A deployment closes the Subscriber while handlers run. Those that return when their contexts end
// have cost their messages nothing, however often that happens.
func TestDeploymentsUseUpNoDelivery(t *testing.T) {
	for name, handlers := range map[string]int{"one handler": 1, "eight handlers": 8} {
		t.Run(name, func(t *testing.T) { testDeployments(t, handlers) })
	}
}

func testDeployments(t *testing.T, handlers int) {
	const all, deployments = 8, 4
	bothEnds(t, func(t *testing.T, s redistest.Server, how string) {
		drained(t, s)
		register(t, s, "t")
		p := newPublisher(t, s)
		publish(t, p, "t", numbered(0, all)...)
		limited := func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 2 }
		for i := range deployments {
			messages, end := subscribeToEnd(t, s, "t", how, closingWithin(1200*time.Millisecond), inFlight(handlers), leaseOf(never), limited)
			var running []*message.Message
			for range handlers {
				msg := receive(t, messages)
				require.Equal(t, 1, deliveryOf(t, msg).Number)
				require.Equal(t, i > 0, deliveryOf(t, msg).Redelivered)
				running = append(running, msg)
			}
			closed := end()
			for _, msg := range running {
				wait(t, msg.Context().Done(), "the end of the context")
				require.ErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrClosed)
				require.True(t, msg.Nack())
			}
			require.NoError(t, wait(t, closed, "the end"))
			requireClosed(t, messages)
			require.Equal(t, state{Bodies: all, Ready: all}, stateOf(t, s, "t"))
			require.Empty(t, s.Client.HGet(ctx, queue.NewKeys(s.Prefix, "t").Stats(redisdelay.DefaultConsumerGroup), "given_up").Val())
		}
		next := subscribe(t, s, "t", limited)
		var came []string
		for range all {
			msg := receive(t, next)
			came = append(came, string(msg.Payload))
			require.Equal(t, 1, deliveryOf(t, msg).Number)
			require.True(t, msg.Ack())
		}
		if handlers == 1 {
			require.Equal(t, numbered(0, all), came, "it was back in its place")
		}
		require.ElementsMatch(t, numbered(0, all), came)
	})
}

// byDefault has the default CloseTimeout, 29s.
func byDefault(c *redisdelay.SubscriberConfig) { c.CloseTimeout = 0 }

// soonClosed is how long Close takes at most if Redis is away and has answered all settlements.
const soonClosed = 2 * time.Second

func TestCloseReturnsSoonIfRedisIsAwayAndKnowsAllSettlements(t *testing.T) {
	for name, leave := range map[string]func(*redistest.Instance){"gone": (*redistest.Instance).Kill, "frozen": (*redistest.Instance).Pause} {
		t.Run(name, func(t *testing.T) {
			s, in := private(t)
			s.Client = in.Client(t)
			p := newPublisher(t, s)
			idle, settled, unread := newSubscriber(t, s, byDefault), newSubscriber(t, s, byDefault), newSubscriber(t, s, byDefault, inFlight(3))
			subscribeTo(t, idle, "idle")
			messages := subscribeTo(t, settled, "settled")
			publish(t, p, "settled", "acked")
			require.True(t, receive(t, messages).Ack())
			eventually(t, func() bool { return stateOf(t, s, "settled") == state{} }, "the ack is answered")
			subscribeTo(t, unread, "unread")
			publish(t, p, "unread", "a", "b")
			eventually(t, func() bool { return stateOf(t, s, "unread").InHand > 0 }, "messages are claimed")

			leave(in)
			began := time.Now()
			var closes []<-chan error
			for _, sub := range []*redisdelay.Subscriber{idle, settled, unread} {
				closes = append(closes, begin(sub.Close))
			}
			for _, closed := range closes {
				require.NoError(t, wait(t, closed, "Close"))
			}
			require.Less(t, time.Since(began), soonClosed+noise)
			if name == "frozen" {
				in.Resume() // or its calls end with the client's patience
			}
		})
	}
}

func TestCloseTriesUntilASettlementIsAnswered(t *testing.T) {
	s, in := private(t, "--appendonly", "yes", "--appendfsync", "always")
	told := counter(s.Client, ":leases:")
	sub := newSubscriber(t, s, byDefault)
	messages := subscribeTo(t, sub, "t")
	publish(t, newPublisher(t, s), "t", "a")
	msg := receive(t, messages)
	in.Kill()
	require.True(t, msg.Ack())
	closed := begin(sub.Close)
	away := time.After(soonClosed + noise)
	select {
	case err := <-closed:
		require.Fail(t, "Close has not waited for the ack's answer", "%v", err)
	case <-away:
	}
	require.Positive(t, told.failures())
	in.Restart()
	require.NoError(t, wait(t, closed, "Close"))
	require.Equal(t, state{}, stateOf(t, s, "t"))
}
