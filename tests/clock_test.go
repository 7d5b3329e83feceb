package tests

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// A Go program reads the clock from the kernel's vDSO, past everything that can be preloaded, and
// time namespaces leave the wall clock alone. So it is the server whose clock is set: that the
// program is an hour behind the server is all the same as that the server is an hour ahead.
func TestClocksOfProgramAndServerAreAnHourApart(t *testing.T) {
	t.Parallel()
	for name, shift := range map[string]time.Duration{
		"program behind": time.Hour,
		"program ahead":  -time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartWithClock(t)
			server.SetClock(shift)
			testClocksApart(t, server.Client(t), shift)
		})
	}
}

func testClocksApart(t *testing.T, client redis.UniversalClient, shift time.Duration) {
	onServer := func() time.Time { return time.Now().Add(shift) }
	require.WithinDuration(t, onServer(), serverTime(t, client), time.Minute)
	expectDrained(t, on(t, client))
	publisher := newPublisher(t, on(t, client))
	messages := subscribe(t, on(t, client))

	// All of them are published before the first is due, so they come in order of due time.
	delays := map[string]func(*message.Message, time.Duration){
		"delay": redisdelay.DelayFor,
		"delay_until": func(msg *message.Message, d time.Duration) {
			redisdelay.DelayUntil(msg, onServer().Add(d))
		},
		"watermill for": func(msg *message.Message, d time.Duration) {
			delay.Message(msg, delay.For(d))
		},
		"watermill until": func(msg *message.Message, d time.Duration) {
			delay.Message(msg, delay.Until(time.Now().Add(d)))
		},
		"context": func(msg *message.Message, d time.Duration) {
			msg.SetContext(delay.WithContext(msg.Context(), delay.For(d)))
		},
	}
	earliest, latest := map[string]time.Time{}, map[string]time.Time{}
	wait := 1500 * time.Millisecond
	for name, set := range delays {
		before := onServer()
		msg := message.NewMessage(name, nil)
		set(msg, wait)
		require.NoError(t, publisher.Publish(topic, msg))
		earliest[name], latest[name] = before.Add(wait), onServer().Add(wait+time.Millisecond)
		wait -= 200 * time.Millisecond
	}

	var last time.Time
	for range delays {
		msg, delivery := receive(t, messages)
		requireOnTime(t, delivery, onServer())
		require.False(t, delivery.DueAt.Before(earliest[msg.UUID]), "%s is due early", msg.UUID)
		require.False(t, delivery.DueAt.After(latest[msg.UUID]), "%s is due late", msg.UUID)
		require.False(t, delivery.DueAt.Before(last), "%s is out of order", msg.UUID)
		last = delivery.DueAt
		msg.Ack()
	}

	// The same for what a handler sets on the message that it nacks.
	publish(t, publisher, "nacked", 0)
	msg, _ := receive(t, messages)
	delete(delays, "context") // delays no nack
	for name, set := range delays {
		before := onServer()
		set(msg, 300*time.Millisecond)
		msg.Nack()
		var delivery redisdelay.Delivery
		msg, delivery = receive(t, messages)
		requireOnTime(t, delivery, onServer())
		require.False(t, delivery.DueAt.Before(before.Add(300*time.Millisecond)), "%s is due early", name)
	}
	msg.Ack()
}

func TestServersClockJumpsBack(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	client := server.Client(t)
	expectDrained(t, on(t, client))
	publisher := newPublisher(t, on(t, client))
	messages := subscribe(t, on(t, client))
	const back = 1500 * time.Millisecond

	const before, after, atOnce = 40, 20, 10
	for i := range before {
		publish(t, publisher, strconv.Itoa(i), time.Duration(rand.Int64N(int64(2*time.Second))))
	}
	for range atOnce {
		msg, delivery := receive(t, messages)
		requireOnTime(t, delivery, time.Now())
		msg.Ack()
	}
	server.SetClock(-back)
	jump := time.Now() // what was due by then may have been claimed by then
	for i := range after {
		publish(t, publisher, strconv.Itoa(before+i), time.Duration(rand.Int64N(int64(2*time.Second))))
	}
	seen := map[string]bool{}
	for range before - atOnce + after {
		msg, delivery := receive(t, messages)
		if delivery.DueAt.After(jump) {
			requireOnTime(t, delivery, time.Now().Add(-back))
		}
		require.False(t, seen[msg.UUID], "%s came twice", msg.UUID)
		seen[msg.UUID] = true
		msg.Ack()
	}
}

// While the clock is wrong, what is published by it is delivered by it; when it is right again,
// what became overdue by that is delivered, as soon as somebody looks.
func TestServersClockIsWrongForAWhile(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	client := server.Client(t)
	expectDrained(t, on(t, client))
	publisher := newPublisher(t, on(t, client))
	messages := subscribe(t, on(t, client))

	publish(t, publisher, "before", 30*time.Minute)
	server.SetClock(-time.Hour)
	publish(t, publisher, "meanwhile", 200*time.Millisecond)
	msg, delivery := receive(t, messages)
	require.Equal(t, "meanwhile", msg.UUID)
	requireOnTime(t, delivery, time.Now().Add(-time.Hour))
	msg.Ack()

	server.SetClock(31 * time.Minute)
	right := time.Now()
	msg, _ = receive(t, messages)
	require.Equal(t, "before", msg.UUID)
	require.Less(t, time.Since(right), fallbackPoll+prompt)
	msg.Ack()
}

// fallbackPoll is how often those that few subscriptions share a process with look by themselves.
const fallbackPoll = 5500 * time.Millisecond

func TestDelayOfADayByAClockMovedByHand(t *testing.T) {
	t.Parallel()
	s := handMoved(t)
	expectDrained(t, s.Server)
	publisher := newPublisher(t, s.Server)
	messages := subscribe(t, s.Server)
	const day = 24 * time.Hour
	start := serverTime(t, s.Client)

	publish(t, publisher, "in a day", day)
	publish(t, publisher, "a millisecond before", day-time.Millisecond)

	s.advance(t, day-time.Millisecond)
	msg, delivery := s.receiveAtOnce(t, messages)
	require.Equal(t, "a millisecond before", msg.UUID)
	require.Equal(t, start.Add(day-time.Millisecond), delivery.DueAt.UTC())
	// So the scheduler has looked at this time. If it had moved the other too, that would come
	// first.
	publish(t, publisher, "meanwhile", 0)
	msg.Ack()
	msg, _ = s.receiveAtOnce(t, messages)
	require.Equal(t, "meanwhile", msg.UUID)
	msg.Ack()

	s.advance(t, time.Millisecond)
	msg, delivery = s.receiveAtOnce(t, messages)
	require.Equal(t, "in a day", msg.UUID)
	require.Equal(t, start.Add(day), delivery.DueAt.UTC())
	msg.Ack()
}

func TestDelayOnErrorGrowsFromItsInitialIntervalByAClockMovedByHand(t *testing.T) {
	t.Parallel()
	s := handMoved(t)
	expectDrained(t, s.Server)
	publisher := newPublisher(t, s.Server)
	messages := subscribe(t, s.Server)
	onError := middleware.DelayOnError{InitialInterval: time.Minute, Multiplier: 2, MaxInterval: 5 * time.Minute}
	failing := onError.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("not today")
	})

	order := message.NewMessage("order", nil)
	delay.Message(order, delay.For(time.Hour))
	require.NoError(t, publisher.Publish(topic, order))
	s.advance(t, time.Hour)
	for i, interval := range []time.Duration{1, 2, 4, 5, 5} {
		interval *= time.Minute
		msg, delivery := s.receiveAtOnce(t, messages)
		require.Equal(t, i+1, delivery.Number)
		_, err := failing(msg)
		require.Error(t, err)
		msg.Nack()
		s.awaitRetry(t)

		// The seconds are for the time since Watermill wrote the interval, on a busy machine.
		s.advance(t, interval-10*time.Second)
		publish(t, publisher, "meanwhile", 0)
		meanwhile, _ := s.receiveAtOnce(t, messages)
		require.Equal(t, "meanwhile", meanwhile.UUID)
		meanwhile.Ack()
		s.advance(t, 10*time.Second)
	}
	msg, _ := s.receiveAtOnce(t, messages)
	require.Equal(t, "order", msg.UUID)
	msg.Ack()
}

// ExpireLeases tells the worker that it has lost its lease, so the worker says nothing more. That
// the server does not listen, where nobody told the worker, is shown by
// TestALateAckOrNackChangesNothingForTheNewHolder.
func TestLateSettlementChangesNothingByAClockMovedByHand(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message) bool{
		"ack":  (*message.Message).Ack,
		"nack": (*message.Message).Nack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := handMoved(t)
			expectDrained(t, s.Server)
			const lease = time.Minute
			ofLease := func(c *redisdelay.SubscriberConfig) {
				c.LeaseDuration = lease
				c.Backoff = func(int) time.Duration { return 0 }
			}
			publisher := newPublisher(t, s.Server)
			var (
				first     *redisdelay.Subscriber
				messages  <-chan *message.Message // of another
				late, msg *message.Message
			)
			for tries := 0; msg == nil; tries++ {
				require.Less(t, tries, 20, "its first holder got the message back each time")
				first = newSubscriber(t, s.Server, ofLease)
				held, err := first.Subscribe(context.Background(), topic)
				require.NoError(t, err)
				publish(t, publisher, "order", 0)
				late, _ = receive(t, held)

				second := newSubscriber(t, s.Server, ofLease)
				messages, err = second.Subscribe(context.Background(), topic)
				require.NoError(t, err)
				s.kit.ExpireLeases(topic)
				select {
				case msg = <-messages:
				case again := <-held: // its first holder may get it, too: then once more
					late.Ack()
					again.Ack()
					require.NoError(t, errors.Join(first.Close(), second.Close()))
				case <-time.After(prompt):
					require.FailNow(t, "no message")
				}
			}
			delivery := deliveryOf(t, msg)
			require.False(t, serverTime(t, s.Client).Before(delivery.DueAt), "it came early")
			require.True(t, delivery.Redelivered)
			require.True(t, settle(late))
			require.NoError(t, first.Close()) // so the server has heard of it

			require.True(t, exists(t, s.Client, keys.Unack(delivery.Group)), "the message is not its new holder's any more")
			require.NoError(t, msg.Context().Err())
			queuetest.Check(t, s.Client, s.Prefix)
			msg.Nack()
			msg, again := s.receiveAtOnce(t, messages)
			require.Equal(t, delivery.ID, again.ID)
			require.Equal(t, delivery.Number+1, again.Number)
			msg.Ack()
		})
	}
}

// handMovedServer is a server whose clock the test moves: an embedded one, whose clock stands still
// else, or a real one, whose clock goes on.
type handMovedServer struct {
	redistest.Server
	kit  *redisdelaytest.Server // nil: it is a real one
	move func(time.Duration)
}

func handMoved(t *testing.T) handMovedServer {
	kit := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	return handMovedServer{redistest.On(t, kit.Client(), redisdelay.DefaultKeyPrefix), kit, kit.Advance}
}

// onHandMoved runs a test on an embedded server and on a real one.
func onHandMoved(t *testing.T, test func(t *testing.T, s handMovedServer)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, handMoved(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartWithClock(t)
		s := redistest.On(t, server.Client(t), redisdelay.DefaultKeyPrefix)
		var ahead time.Duration
		test(t, handMovedServer{s, nil, func(d time.Duration) {
			ahead += d
			server.SetClock(ahead)
			testkit.LookNow(t, s) // as processes sleep by clocks of their own
		}})
	})
}

// advance moves the clock.
func (s handMovedServer) advance(t *testing.T, d time.Duration) {
	t.Helper()
	s.move(d)
}

// requireBetween checks an instant that the server took while the test did something, between two
// looks at the clock. The embedded one's stands still, so that there it is exact. What the server
// takes is rounded up to the millisecond.
func requireBetween(t testing.TB, instant, earliest, latest time.Time) {
	t.Helper()
	require.False(t, instant.Before(earliest), "%v too early", earliest.Sub(instant))
	latest = latest.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	require.False(t, instant.After(latest), "%v too late", instant.Sub(latest))
}

// receiveAtOnce is receive of a message that no poll had to find. It may be as late as this machine
// is meanwhile.
func (s handMovedServer) receiveAtOnce(t *testing.T, messages <-chan *message.Message) (*message.Message, redisdelay.Delivery) {
	t.Helper()
	start, stalls := time.Now(), faulttest.Stalls(t, s.Client)
	msg, delivery := receive(t, messages)
	took := time.Since(start)
	require.Less(t, took, prompt+stalls())
	require.False(t, serverTime(t, s.Client).Before(delivery.DueAt), "%s came early", msg.UUID)
	return msg, delivery
}

// awaitRetry waits until the server knows that the message was nacked.
func (s handMovedServer) awaitRetry(t *testing.T) {
	t.Helper()
	awaitRetry(t, s.Server)
}

func serverTime(t testing.TB, client redis.UniversalClient) time.Time {
	t.Helper()
	now, err := client.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UTC()
}

// requireOnTime checks a delivery at now by the server's clock.
func requireOnTime(t testing.TB, delivery redisdelay.Delivery, now time.Time) {
	t.Helper()
	require.False(t, now.Before(delivery.DueAt), "%v early", delivery.DueAt.Sub(now))
	require.Less(t, now.Sub(delivery.DueAt), prompt, "late")
}
