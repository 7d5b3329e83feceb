package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// noise is how much longer than promised something may take on a slow machine.
const noise = 1500 * time.Millisecond

// closeInTime closes, and returns where Close's error comes. It may take a second longer than
// CloseTimeout.
func closeInTime(t *testing.T, timeout time.Duration, closer func() error) <-chan error {
	t.Helper()
	return begin(func() error {
		started := time.Now()
		err := closer()
		assert.Less(t, time.Since(started), timeout+time.Second+noise)
		return err
	})
}

func TestSubscriberClosesOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		sub := newSubscriber(t, s)
		var channels []<-chan *message.Message
		for i := range 5 {
			channels = append(channels, subscribeTo(t, sub, fmt.Sprint("t", i%3)))
		}
		var closes []<-chan error
		for range 10 {
			closes = append(closes, begin(sub.Close))
		}
		for _, closed := range closes {
			require.NoError(t, wait(t, closed, "Close"))
		}
		for _, messages := range channels {
			requireClosed(t, messages)
		}
		require.NoError(t, sub.Close())
		_, err := sub.Subscribe(ctx, "t0")
		require.ErrorIs(t, err, redisdelay.ErrClosed)
		require.ErrorIs(t, sub.SubscribeInitialize("t0"), redisdelay.ErrClosed)
		require.NoError(t, s.Client.Ping(ctx).Err(), "the client is the caller's")
	})
}

func TestASubscriberThatNeverSubscribedCloses(t *testing.T) {
	t.Parallel()
	s := redistest.On(t, clientOf(t, "127.0.0.1:1"), "test")
	sub := newSubscriber(t, s)
	require.NoError(t, sub.Close())
	_, err := sub.Subscribe(ctx, "t")
	require.ErrorIs(t, err, redisdelay.ErrClosed)
}

// ends are the two ways to end a subscription. Each returns when nothing more is claimed.
var ends = map[string]func(sub *redisdelay.Subscriber, cancel func()) (closed <-chan error){
	"Close": func(sub *redisdelay.Subscriber, _ func()) <-chan error {
		closed := begin(sub.Close)
		for !errors.Is(sub.SubscribeInitialize("t"), redisdelay.ErrClosed) {
			continue
		}
		return closed
	},
	"cancel": func(_ *redisdelay.Subscriber, cancel func()) <-chan error {
		cancel()
		return begin(func() error { return nil })
	},
}

// subscribeToEnd returns a subscription and what ends it.
func subscribeToEnd(t *testing.T, s redistest.Server, topic, how string, change ...func(*redisdelay.SubscriberConfig)) (<-chan *message.Message, func() <-chan error) {
	t.Helper()
	sub := newSubscriber(t, s, change...)
	cancellable, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	messages, err := sub.Subscribe(cancellable, topic)
	require.NoError(t, err)
	return messages, func() <-chan error { return ends[how](sub, cancel) }
}

func bothEnds(t *testing.T, test func(t *testing.T, s redistest.Server, how string)) {
	for how := range ends {
		t.Run(how, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) { test(t, s, how) })
		})
	}
}

func TestUnreadMessagesGoBackInOrderAndUncounted(t *testing.T) {
	bothEnds(t, func(t *testing.T, s redistest.Server, how string) {
		drained(t, s)
		register(t, s, "t")
		publish(t, newPublisher(t, s), "t", numbered(0, 30)...)
		messages, end := subscribeToEnd(t, s, "t", how, inFlight(20))
		eventually(t, func() bool { return stateOf(t, s, "t").InHand > 0 }, "messages are claimed")

		require.NoError(t, wait(t, end(), "the end"))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 30, Ready: 30} }, "all are back")
		requireClosed(t, messages)
		require.Empty(t, records(t, s, "t"))

		next := subscribe(t, s, "t")
		for _, want := range numbered(0, 30) {
			msg := receive(t, next)
			require.Equal(t, want, string(msg.Payload))
			require.Equal(t, 1, deliveryOf(t, msg).Number)
			require.False(t, deliveryOf(t, msg).Redelivered)
			require.True(t, msg.Ack())
		}
	})
}

func TestHandlersFinishWhileOthersTakeTheRestAtOnce(t *testing.T) {
	bothEnds(t, func(t *testing.T, s redistest.Server, how string) {
		drained(t, s)
		p := newPublisher(t, s)
		messages, end := subscribeToEnd(t, s, "t", how, closingWithin(soon))
		others := subscribe(t, s, "other")
		publish(t, p, "t", numbered(0, 100)...)
		consume(t, messages, 40) // a quick consumer has messages claimed ahead
		msg := receive(t, messages)
		closed := end()

		// Other subscribers get its other messages while its handler still runs.
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 60, Ready: 59, InHand: 1} }, "it is handed back")
		next := subscribe(t, s, "t")
		for _, want := range numbered(41, 100) {
			got := receive(t, next)
			require.Equal(t, want, string(got.Payload))
			require.False(t, deliveryOf(t, got).Redelivered)
			require.True(t, got.Ack())
		}
		require.NoError(t, msg.Context().Err())
		require.NoError(t, p.Publish("other", msg), "what the handler publishes counts")
		require.True(t, msg.Ack())
		require.NoError(t, wait(t, closed, "the end"))
		requireClosed(t, messages)
		require.Equal(t, []string{"0040"}, consume(t, others, 1))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the last ack counts")
	})
}

func TestANackWhileClosingCounts(t *testing.T) {
	bothEnds(t, func(t *testing.T, s redistest.Server, how string) {
		drained(t, s)
		messages, end := subscribeToEnd(t, s, "t", how, closingWithin(soon), inFlight(3))
		publish(t, newPublisher(t, s), "t", "a", "b", "c")
		a, b, c := receive(t, messages), receive(t, messages), receive(t, messages)
		closed := end()
		require.True(t, b.Nack())
		require.True(t, c.Ack())
		require.True(t, a.Ack())
		require.NoError(t, wait(t, closed, "the end"))
		requireClosed(t, messages)
		require.Equal(t, state{Bodies: 1, Ready: 1}, stateOf(t, s, "t"))
		msg := receive(t, subscribe(t, s, "t"))
		require.Equal(t, 2, deliveryOf(t, msg).Number)
		require.True(t, msg.Ack())
	})
}

func TestAHandlerThatDoesNotEndIsGivenUpAfterCloseTimeout(t *testing.T) {
	const timeout = 100 * time.Millisecond
	bothEnds(t, func(t *testing.T, s redistest.Server, how string) {
		messages, end := subscribeToEnd(t, s, "t", how, closingWithin(timeout), inFlight(2))
		publish(t, newPublisher(t, s), "t", "a", "b")
		a, b := receive(t, messages), receive(t, messages)
		require.NoError(t, wait(t, closeInTime(t, timeout, func() error { return <-end() }), "the end"))
		requireClosed(t, messages)
		for _, msg := range []*message.Message{a, b} {
			require.ErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrClosed)
			require.True(t, msg.Ack(), "it is too late")
		}
		require.Equal(t, state{Bodies: 2, InHand: 2}, stateOf(t, s, "t"), "until the leases run out")
	})
}

// One of the subscriptions has ended before, by its context.
func TestWhatIsGivenUpIsLoggedAndCountedAndNoError(t *testing.T) {
	givesUp := func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		book := &logbook{}
		sub := newLoggingSubscriber(t, s, book.logger(), closingWithin(50*time.Millisecond), leaseOf(never), inFlight(2))
		cancellable, cancel := context.WithCancel(ctx)
		defer cancel()
		ending, err := sub.Subscribe(cancellable, "t0")
		require.NoError(t, err)
		topics := map[string]string{} // by UUID
		for i, messages := range []<-chan *message.Message{ending, subscribeTo(t, sub, "t1"), subscribeTo(t, sub, "t2")} {
			topic := fmt.Sprint("t", i)
			publish(t, newPublisher(t, s), topic, "given up", "acked")
			givenUp := receive(t, messages)
			require.True(t, receive(t, messages).Ack())
			topics[givenUp.UUID] = topic
		}
		cancel()
		requireClosed(t, ending)
		for range 2 {
			require.NoError(t, wait(t, begin(sub.Close), "Close"))
		}
		for i := range 3 {
			require.Equal(t, "1", s.Client.HGet(ctx, queue.NewKeys(s.Prefix, fmt.Sprint("t", i)).Stats(redisdelay.DefaultConsumerGroup), "given_up").Val())
		}
		lines := book.find("error", "redisdelay.subscriber")
		require.Len(t, lines, 3)
		for _, line := range lines {
			require.EqualError(t, line.err, "not settled within CloseTimeout")
			require.Equal(t, topics[line.fields["message_uuid"].(string)], line.fields["topic"])
			require.Equal(t, redisdelay.DefaultConsumerGroup, line.fields["consumer_group"])
			require.Equal(t, 50*time.Millisecond, line.fields["limit"])
			require.NotEmpty(t, line.fields["message_id"])
		}
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		_, client := redistest.Embedded(t)
		givesUp(t, redistest.On(t, client, "test"))
	})
	t.Run("real", func(t *testing.T) { // a server of its own: other tests may keep a shared one busy for longer than Close waits
		s, _ := private(t)
		givesUp(t, s)
	})
}

// A Broadcast subscription has a group of its own, which the line names.
func TestALineOfABroadcastSubscriptionNamesItsGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		book := &logbook{}
		sub := newLoggingSubscriber(t, s, book.logger(), closingWithin(time.Millisecond), broadcasting)
		messages := subscribeTo(t, sub, "t")
		publish(t, newPublisher(t, s), "t", "a")
		group := deliveryOf(t, receive(t, messages)).Group
		require.NoError(t, wait(t, begin(sub.Close), "Close"))
		lines := book.find("error", "redisdelay.subscriber")
		require.Len(t, lines, 1)
		require.Equal(t, group, lines[0].fields["consumer_group"])
	})
}

func TestCloseDoesNotWaitForASubscribe(t *testing.T) {
	for name, call := range map[string]string{"that registers": ":groups", "that opens its mailbox": ":mailbox:"} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				client := another(t, s)
				held := hold(t, client, call)
				defer held.open()
				sub := newSubscriber(t, s, through(client), closingWithin(time.Millisecond))
				subscribed := begin(func() error { _, err := sub.Subscribe(ctx, "t"); return err })
				wait(t, held.arrived, "Subscribe")
				closed := begin(sub.Close)
				require.NoError(t, wait(t, closed, "Close"))
				held.open()
				require.ErrorIs(t, wait(t, subscribed, "Subscribe"), redisdelay.ErrClosed)
			})
		})
	}
}

func TestSubscribingWhileClosingWorksOrIsRefused(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		sub := newSubscriber(t, s)
		subscribeTo(t, sub, "first")
		var wg sync.WaitGroup
		subscribed := make(chan struct{}, 1000)
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					messages, err := sub.Subscribe(ctx, fmt.Sprint("t", i, n%5))
					if err != nil {
						assert.ErrorIs(t, err, redisdelay.ErrClosed)
						return
					}
					subscribed <- struct{}{}
					if n == 20 {
						for range messages { // until it closes
						}
						return
					}
				}
			})
		}
		for range 20 {
			wait(t, subscribed, "subscriptions")
		}
		require.NoError(t, sub.Close())
		wg.Wait()
	})
}

func TestACancelledContextEndsItsSubscriptionOnly(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		sub := newSubscriber(t, s)
		cancellable, cancel := context.WithCancel(ctx)
		defer cancel()
		ending, err := sub.Subscribe(cancellable, "t")
		require.NoError(t, err)
		sameTopic, otherTopic := subscribeTo(t, sub, "t"), subscribeTo(t, sub, "other")
		cancel()
		requireClosed(t, ending)
		p := newPublisher(t, s)
		require.NoError(t, p.Publish("t", delayed("a", 10*time.Millisecond)))
		require.NoError(t, p.Publish("other", delayed("b", 10*time.Millisecond)))
		require.Equal(t, []string{"a"}, consume(t, sameTopic, 1))
		require.Equal(t, []string{"b"}, consume(t, otherTopic, 1))
		require.Equal(t, []string{"c"}, func() []string {
			again := subscribeTo(t, sub, "third")
			publish(t, p, "third", "c")
			return consume(t, again, 1)
		}())
	})
}

func TestCloseWithARedisThatIsGone(t *testing.T) {
	const timeout = 500 * time.Millisecond
	s, in := private(t)
	s.Client = in.Client(t) // one that tries again, for longer than CloseTimeout
	p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.CloseTimeout = timeout })
	closers := []func() error{p.Close}
	var handled []*message.Message
	for _, name := range []string{"idle", "unread", "handling", "settling"} {
		sub := newSubscriber(t, s, closingWithin(timeout), inFlight(2))
		closers = append(closers, sub.Close)
		messages := subscribeTo(t, sub, name)
		if name != "idle" {
			publish(t, p, name, "a", "b")
		}
		if name == "handling" || name == "settling" {
			handled = append(handled, receive(t, messages), receive(t, messages))
		}
	}
	in.Kill()
	publishing := begin(func() error { return p.Publish("t", text("x")) })
	settled := handled[3]
	require.True(t, settled.Ack())
	var closes []<-chan error
	for _, closer := range closers {
		closes = append(closes, closeInTime(t, timeout, closer))
	}
	for _, closed := range closes {
		_ = wait(t, closed, "Close") // whether it could say all it had to say
	}
	for _, msg := range handled[:3] {
		wait(t, msg.Context().Done(), "the end of the context")
		require.ErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrClosed)
	}
	require.Error(t, wait(t, publishing, "the call of Publish"))
	require.ErrorIs(t, p.Publish("t", text("x")), redisdelay.ErrClosed)
}

func TestCloseWithARedisThatIsFrozen(t *testing.T) {
	const timeout = 500 * time.Millisecond
	s, in := private(t)
	s.Client = in.Client(t)
	client := another(t, s)
	sent := gate(t, client)
	sent.open()
	p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client, c.CloseTimeout = client, timeout })
	idle := newSubscriber(t, s, closingWithin(timeout))
	subscribeTo(t, idle, "t")
	busy := newSubscriber(t, s, closingWithin(timeout), inFlight(2))
	messages := subscribeTo(t, busy, "busy")
	publish(t, p, "busy", "a", "b")
	running, settled := receive(t, messages), receive(t, messages)

	<-sent.arrived // the first call of Publish
	in.Pause()
	require.True(t, settled.Ack()) // which Redis does not answer
	publishing := begin(func() error { return p.Publish("busy", text("x")) })
	wait(t, sent.arrived, "the call of Publish")
	closes := []<-chan error{
		closeInTime(t, timeout, idle.Close),
		closeInTime(t, timeout, busy.Close),
		closeInTime(t, timeout, p.Close),
	}
	require.NoError(t, wait(t, closes[0], "Close"), "nothing was to be settled")
	for _, closed := range closes[1:] {
		require.ErrorContains(t, wait(t, closed, "Close"), "CloseTimeout")
	}
	// Handlers are told in time too, and not when the client has given up its connections.
	select {
	case <-running.Context().Done():
		require.ErrorIs(t, context.Cause(running.Context()), redisdelay.ErrClosed)
	case <-time.After(noise):
		assert.Fail(t, "the handler does not know that CloseTimeout is over")
	}

	in.Resume()
	require.NoError(t, wait(t, begin(idle.Close), "the rest of Close"))
	require.ErrorContains(t, wait(t, begin(busy.Close), "the rest of Close"), "CloseTimeout", "as before")
	requireClosed(t, messages)
	<-publishing // it may have been done, or given up
	require.NoError(t, p.Close())
}

func TestStartingAndStoppingLosesAndDoublesNothing(t *testing.T) {
	const all, workers = 300, 4
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		register(t, s, "t")
		var mu sync.Mutex
		times := map[string]int{}
		complete := make(chan struct{})
		handle := func(msg *message.Message) {
			mu.Lock()
			defer mu.Unlock()
			times[string(msg.Payload)]++
			msg.Ack()
			if len(times) == all {
				close(complete)
			}
		}
		work := func(quota int, byCancel bool) {
			sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
				Client: s.Client, KeyPrefix: s.Prefix, MaxInFlight: 1 + rand.IntN(8), CloseTimeout: soon, LeaseDuration: never,
			}, nil)
			if !assert.NoError(t, err) {
				return
			}
			defer sub.Close()
			cancellable, cancel := context.WithCancel(ctx)
			defer cancel()
			messages, err := sub.Subscribe(cancellable, "t")
			if !assert.NoError(t, err) {
				return
			}
			for range quota {
				select {
				case msg := <-messages:
					handle(msg)
				case <-complete:
				}
			}
			if byCancel {
				cancel()
			} else {
				defer begin(sub.Close)
			}
		}
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for round := 0; ; round++ {
					select {
					case <-complete:
						return
					default:
						work(rand.IntN(20), (worker+round)%2 == 0)
					}
				}
			})
		}
		for i := 0; i < all; i += 3 {
			var batch []*message.Message
			for _, payload := range numbered(i, i+3) {
				batch = append(batch, delayed(payload, time.Duration(rand.IntN(30))*time.Millisecond))
			}
			require.NoError(t, p.Publish("t", batch...))
		}
		wait(t, complete, "all messages")
		wg.Wait()
		for payload, n := range times {
			require.Equal(t, 1, n, payload)
		}
	})
}
