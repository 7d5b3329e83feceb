package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// deadlines are the ends of the default group's leases.
func deadlines(t *testing.T, s redistest.Server, topic string) []time.Time {
	t.Helper()
	inHand := queue.NewKeys(s.Prefix, topic).Unack(redisdelay.DefaultConsumerGroup)
	leases, err := s.Client.ZRangeWithScores(ctx, inHand, 0, -1).Result()
	require.NoError(t, err)
	var ends []time.Time
	for _, lease := range leases {
		ends = append(ends, time.UnixMilli(int64(lease.Score)))
	}
	return ends
}

func TestALeaseIsExtendedWhileTheHandlerRuns(t *testing.T) {
	for name, most := range map[string]time.Duration{"by default": 0, "without limit": -1} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				messages := subscribe(t, s, "t", leaseOf(time.Second), inFlight(2), func(c *redisdelay.SubscriberConfig) {
					c.MaxExtension = most
				})
				publish(t, newPublisher(t, s), "t", "long")
				long := receive(t, messages)
				first := deadlines(t, s, "t")[0]
				eventually(t, func() bool { return serverTime(t, s).After(first.Add(time.Second)) }, "the first end of the lease")
				require.NoError(t, long.Context().Err())
				require.Equal(t, state{Bodies: 1, InHand: 1}, stateOf(t, s, "t"))

				publish(t, newPublisher(t, s), "t", "next")
				require.Equal(t, []string{"next"}, consume(t, messages, 1))
				require.True(t, long.Ack())
				eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the ack")
			})
		})
	}
}

// lapse has all leases of a topic run out by the server's clock.
func lapse(t *testing.T, s redistest.Server, topic string, lease time.Duration) {
	t.Helper()
	jump(t, s, lease+2*time.Second)
	stop := schedule(t, s)
	settledState(t, s, topic)
	stop()
}

// stolen has a message in the hand of one worker, whose lease then runs out by the server's clock,
// and in the hand of another, which it returns.
func stolen(t *testing.T, s redistest.Server, lease time.Duration) (late, current *message.Message, messages <-chan *message.Message) {
	t.Helper()
	messages = subscribe(t, s, "t", leaseOf(lease))
	publish(t, newPublisher(t, s), "t", "x")
	late = receive(t, messages)
	lapse(t, s, "t", lease)
	current = receive(t, subscribe(t, s, "t", leaseOf(lease)))
	require.Equal(t, deliveryOf(t, late).ID, deliveryOf(t, current).ID)
	return late, current, messages
}

func TestALateAckOrNackChangesNothingForTheNewHolder(t *testing.T) {
	for how, settle := range map[string]func(*message.Message) bool{
		"ack":  (*message.Message).Ack,
		"nack": (*message.Message).Nack,
		"nack with delay": func(msg *message.Message) bool {
			msg.Metadata.Set(redisdelay.DelayKey, "1h")
			return msg.Nack()
		},
	} {
		t.Run(how, func(t *testing.T) {
			s := embedded(t)
			drained(t, s)
			late, current, messages := stolen(t, s, 10*time.Minute)
			require.True(t, settle(late))
			publish(t, newPublisher(t, s), "t", "next")
			next := receive(t, messages) // asked for together with the late settling
			require.Equal(t, "next", string(next.Payload))
			require.Equal(t, state{Bodies: 2, InHand: 2}, stateOf(t, s, "t"))

			require.NoError(t, current.Context().Err())
			require.Equal(t, 1, deliveryOf(t, current).Number, "it is not known who is to blame")
			require.True(t, deliveryOf(t, current).Redelivered)
			require.True(t, current.Ack())
			require.True(t, next.Ack())
			eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the acks that count")
		})
	}
}

func TestAHandlerIsToldThatItsLeaseIsLost(t *testing.T) {
	s := embedded(t)
	drained(t, s)
	late, current, messages := stolen(t, s, 3*time.Second) // it is told within a third of that; the other has the message by then
	wait(t, late.Context().Done(), "the end of the context")
	require.ErrorIs(t, context.Cause(late.Context()), redisdelay.ErrLeaseLost)
	require.True(t, late.Ack())
	require.NoError(t, current.Context().Err())
	publish(t, newPublisher(t, s), "t", "next")
	require.Equal(t, []string{"next"}, consume(t, messages, 1), "the subscription goes on")
	require.True(t, current.Ack())
	eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the acks that count")
}

func TestAWorkerWhoseNetworkFreezesLosesItsMessages(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		network := newProxy(t, s)
		messages := subscribe(t, s, "t", through(network.client(t)), leaseOf(time.Second), inFlight(2))
		publish(t, newPublisher(t, s), "t", "a", "b")
		acked, nacked := receive(t, messages), receive(t, messages)
		network.stall()

		started := time.Now()
		healthy := subscribe(t, s, "t", leaseOf(10*time.Minute))
		first := receive(t, healthy)
		for _, late := range []*message.Message{acked, nacked} {
			wait(t, late.Context().Done(), "the end of the context")
			require.ErrorIs(t, context.Cause(late.Context()), redisdelay.ErrLeaseLost)
		}
		// The client gives up a connection that does not answer only after seconds, and tries
		// again.
		require.Less(t, time.Since(started), 5*time.Second, "the handler is told when the lease is over")

		require.True(t, acked.Ack())
		require.True(t, nacked.Nack())
		network.resume()
		require.True(t, first.Ack())
		either := merged(t, messages, healthy)
		second := consume(t, either, 1)
		require.ElementsMatch(t, []string{"a", "b"}, append(second, string(first.Payload)))
		publish(t, newPublisher(t, s), "t", "c", "d")
		require.ElementsMatch(t, []string{"c", "d"}, consume(t, either, 2))
	})
}

func TestAHandlerThatRunsForTooLongFails(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		book := &logbook{}
		allowing := func(deliveries int) func(*redisdelay.SubscriberConfig) {
			return func(c *redisdelay.SubscriberConfig) {
				c.LeaseDuration, c.MaxExtension, c.MaxDeliveries = 3*time.Second, 500*time.Millisecond, deliveries
			}
		}
		messages := map[string]<-chan *message.Message{
			"once":  subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), allowing(1)), "once"),
			"twice": subscribe(t, s, "twice", allowing(2)),
		}
		handed, long := map[string]time.Time{}, map[string]*message.Message{}
		for topic := range messages {
			publish(t, newPublisher(t, s), topic, "long", "good")
			long[topic] = receive(t, messages[topic])
			handed[topic] = time.Now()
		}
		for topic, msg := range long {
			wait(t, msg.Context().Done(), "the end of the context")
			require.GreaterOrEqual(t, time.Since(handed[topic]), 3*time.Second)
			require.ErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrLeaseLost)
			require.True(t, msg.Ack(), "it is too late")
		}
		again := receive(t, messages["twice"])
		require.Equal(t, "long", string(again.Payload))
		require.Equal(t, 2, deliveryOf(t, again).Number)
		require.True(t, again.Ack())
		require.Equal(t, []string{"good"}, consume(t, messages["twice"], 1))

		require.Equal(t, []string{"good"}, consume(t, messages["once"], 1))
		eventually(t, func() bool { return stateOf(t, s, "once") == state{Bodies: 1, Dead: 1} }, "a dead message")
		for _, record := range records(t, s, "once") {
			require.Equal(t, "1 - - the handler ran for longer than 3.5s (LeaseDuration and MaxExtension)", record)
		}
		eventually(t, func() bool { return book.count("error", "redisdelay.subscriber") > 0 }, "it says so")
		deaths := book.find("error", "redisdelay.subscriber")
		require.Len(t, deaths, 1)
		require.Equal(t, "A message is dead-lettered", deaths[0].text)
	})
}

// Redis hears of it late, and may have given the message to another, or in this case to the same
// worker again.
func TestADeathToldTooLateIsNotLogged(t *testing.T) {
	const lease = 500 * time.Millisecond
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		client, book := another(t, s), &logbook{}
		network := failing(client, s.Prefix)
		messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), through(client), leaseOf(lease), func(c *redisdelay.SubscriberConfig) {
			c.MaxDeliveries = 1
		}), "t")
		publish(t, newPublisher(t, s), "t", "x")
		msg := receive(t, messages)
		redisdelay.DeadOnNack(msg, errors.New("hopeless"))
		network.fail(io.EOF)
		require.True(t, msg.Nack())
		stop := schedule(t, s)
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Ready: 1} }, "the end of the lease")
		stop()
		require.Empty(t, deathsIn(book), "Redis does not know yet")
		network.fail(nil)
		require.Equal(t, []string{"x"}, consume(t, messages, 1))
		deaths := deathsIn(book)
		require.Len(t, deaths, 1)
		require.Equal(t, "A message is dead-lettered, unless its lease ran out before", deaths[0].text)
		require.EqualError(t, deaths[0].err, "hopeless")
	})
}

// deathsIn is what was logged of messages that are dead, or may be.
func deathsIn(book *logbook) (deaths []entry) {
	for _, e := range book.find("error", "redisdelay.subscriber") {
		if strings.HasPrefix(e.text, "A message is dead-lettered") {
			deaths = append(deaths, e)
		}
	}
	return deaths
}

// Messages claimed in advance went back while the handlers ran. The handlers then lose their
// messages. Only that tells that the consumer takes others.
func TestMessagesComeAgainAfterAllHandlersRanForTooLong(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", leaseOf(500*time.Millisecond), inFlight(3), func(c *redisdelay.SubscriberConfig) {
			c.MaxExtension, c.Backoff = 200*time.Millisecond, func(int) time.Duration { return time.Hour }
		})
		p := newPublisher(t, s)
		publish(t, p, "t", numbered(0, 20)...)
		consume(t, messages, 20) // fast, so that it claims ahead
		publish(t, p, "t", numbered(0, 40)...)
		var slow []*message.Message
		for range 3 {
			slow = append(slow, receive(t, messages))
		}
		eventually(t, func() bool { return stateOf(t, s, "t").Ready == 37 }, "the others are back")
		for _, msg := range slow {
			wait(t, msg.Context().Done(), "the end of the context")
		}
		require.Equal(t, numbered(3, 40), consume(t, messages, 37))
	})
}

// TestAMessageThatCrashesItsProcessesDiesAlone has workers freeze, one after the other, with all
// that they get. From the third one on, fewer messages come with the first one each time.
func TestAMessageThatCrashesItsProcessesDiesAlone(t *testing.T) {
	s := embedded(t)
	const lease = 10 * time.Minute
	freezes := func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries, c.CloseTimeout = 3, time.Millisecond }
	publish(t, newPublisher(t, s), "t", numbered(0, 4)...)
	for i, c := range []struct{ together, number int }{{4, 1}, {4, 1}, {2, 1}, {1, 1}, {1, 2}, {1, 3}} {
		messages := subscribe(t, s, "t", leaseOf(lease), inFlight(4), freezes)
		for j, want := range numbered(0, c.together) {
			msg := receive(t, messages)
			require.Equal(t, want, string(msg.Payload))
			require.Equal(t, i > 0, deliveryOf(t, msg).Redelivered)
			if j == 0 {
				require.Equal(t, c.number, deliveryOf(t, msg).Number)
			}
		}
		select {
		case msg := <-messages:
			require.Fail(t, "one too many", "%d: %s", i, msg.Payload)
		case <-time.After(20 * time.Millisecond):
		}
		require.EqualValues(t, c.together, stateOf(t, s, "t").InHand)
		lapse(t, s, "t", lease)
	}

	// After the last of its deliveries it is dead, and the others have lost none of theirs.
	publish(t, newPublisher(t, s), "t", "new")
	messages := subscribe(t, s, "t", leaseOf(lease), inFlight(4), freezes)
	for _, want := range []string{"0001", "0002", "0003", "new"} {
		msg := receive(t, messages)
		require.Equal(t, want, string(msg.Payload))
		require.Equal(t, 1, deliveryOf(t, msg).Number)
		require.Equal(t, want != "new", deliveryOf(t, msg).Redelivered)
		require.True(t, msg.Ack())
	}
	eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "one dead message")
	for _, record := range records(t, s, "t") {
		require.Equal(t, "3 d - lease expired on the last of 3 deliveries", record)
	}
}

// expired notes for every message that so many leases of it in a row have expired that it has to be
// held alone.
func expired(t *testing.T, s redistest.Server) {
	t.Helper()
	k := queue.NewKeys(s.Prefix, "t")
	for _, id := range s.Client.HKeys(ctx, k.Messages()).Val() {
		require.NoError(t, s.Client.HSet(ctx, k.Deliveries(redisdelay.DefaultConsumerGroup), id, "0 d -").Err())
		require.NoError(t, s.Client.HSet(ctx, k.Suspects(redisdelay.DefaultConsumerGroup), id, "20 - -").Err())
	}
}

// suspected has a suspect in front of ready, which has to be held alone, and a worker with room for
// two that is busy with one message, which it returns.
func suspected(t *testing.T, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) (busy *message.Message, messages <-chan *message.Message) {
	t.Helper()
	p := newPublisher(t, s)
	crashing := newSubscriber(t, s, leaseOf(time.Second), closingWithin(time.Millisecond))
	crashes := subscribeTo(t, crashing, "t")
	publish(t, p, "t", "suspect")
	receive(t, crashes)
	expired(t, s)
	messages = subscribe(t, s, "t", append(change, inFlight(2))...)
	publish(t, p, "t", "busy")
	busy = receive(t, messages)
	require.Equal(t, "busy", string(busy.Payload))
	require.NoError(t, crashing.Close())
	eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 2, Ready: 1, InHand: 1} }, "the end of the lease")
	return busy, messages
}

func TestASuspectWaitsForAWorkerThatHoldsNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		busy, messages := suspected(t, s)
		publish(t, newPublisher(t, s), "t", "a")
		select {
		case msg := <-messages:
			require.Fail(t, "it is not alone", "%s", msg.Payload)
		case <-time.After(20 * time.Millisecond):
		}
		require.True(t, busy.Ack())
		suspect := receive(t, messages)
		require.Equal(t, "suspect", string(suspect.Payload))
		require.Equal(t, state{Bodies: 2, Ready: 1, InHand: 1}, stateOf(t, s, "t"))

		require.True(t, suspect.Nack()) // its handler lives, so it is no suspect any more
		suspect, a := receive(t, messages), receive(t, messages)
		require.Equal(t, "suspect", string(suspect.Payload))
		require.Equal(t, 2, deliveryOf(t, suspect).Number)
		require.Equal(t, "a", string(a.Payload))
		require.True(t, suspect.Ack())
		require.True(t, a.Ack())
	})
}

// held is the lease of a worker that is held up by a suspect. It is extended meanwhile, also on a
// busy machine.
const held = 3 * time.Second

// Else one handler that runs for hours would keep its worker from all that is behind the suspect.
func TestASuspectWaitsNoLongerThanALease(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		busy, messages := suspected(t, s, leaseOf(held))
		publish(t, newPublisher(t, s), "t", "a")
		require.Equal(t, []string{"suspect", "a"}, consume(t, messages, 2))
		require.NoError(t, busy.Context().Err(), "it was in hand all the time")
		require.True(t, busy.Ack())
	})
}

// However many there are: else they would hold up what is behind them for as many leases.
func TestSuspectsWaitTogetherNoLongerThanALease(t *testing.T) {
	const n = 6
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		crashing := newSubscriber(t, s, leaseOf(time.Second), inFlight(n), closingWithin(time.Millisecond))
		crashes := subscribeTo(t, crashing, "t")
		suspects := numbered(0, n)
		publish(t, p, "t", suspects...)
		for range n {
			receive(t, crashes)
		}
		expired(t, s)
		messages := subscribe(t, s, "t", leaseOf(held), inFlight(10))
		publish(t, p, "t", "busy")
		busy := receive(t, messages)
		require.Equal(t, "busy", string(busy.Payload))
		require.NoError(t, crashing.Close())
		eventually(t, func() bool { return stateOf(t, s, "t").Ready == n }, "the end of the leases")
		began := time.Now()
		publish(t, p, "t", "a")
		require.Equal(t, append(suspects, "a"), consume(t, messages, n+1))
		require.Less(t, time.Since(began), (n-1)*held)
		require.NoError(t, busy.Context().Err(), "it was in hand all the time")
		require.True(t, busy.Ack())
	})
}

// Its lease lasts for ever, and who takes the suspect tells.
func TestASuspectThatIsGoneHoldsUpNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		busy, messages := suspected(t, s, leaseOf(never))
		waiters := queue.NewKeys(s.Prefix, "t").Waiters(redisdelay.DefaultConsumerGroup)
		eventually(t, func() bool { return s.Client.ZCard(ctx, waiters).Val() == 0 }, "it has found out")
		suspect := receive(t, subscribe(t, s, "t"))
		require.Equal(t, "suspect", string(suspect.Payload))
		publish(t, newPublisher(t, s), "t", "a") // the other has no room for it
		require.Equal(t, []string{"a"}, consume(t, messages, 1))
		require.True(t, suspect.Ack())
		require.True(t, busy.Ack())
	})
}

func TestASuspectGoesToAnotherWorkerThatHoldsNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		busy, _ := suspected(t, s)
		require.Equal(t, []string{"suspect"}, consume(t, subscribe(t, s, "t"), 1))
		require.True(t, busy.Ack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the acks")
	})
}

func TestALostReplyToAClaimStrandsNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		network := newProxy(t, s)
		p := newPublisher(t, s)
		messages := subscribe(t, s, "t", through(network.client(t)), leaseOf(10*time.Minute), inFlight(5))
		publish(t, p, "t", "before")
		consume(t, messages, 1)
		for lost := 1; lost <= 3; lost++ {
			network.loseReplies(lost, ":claim:", func() {})
			want := numbered(lost*10, lost*10+10)
			publish(t, p, "t", want...)
			var got []string
			for range want {
				msg := receive(t, messages)
				require.False(t, deliveryOf(t, msg).Redelivered)
				got = append(got, string(msg.Payload))
				require.True(t, msg.Ack())
			}
			require.Equal(t, want, got)
			// A claim may have been on its way when the losses began, and brought them all.
			eventually(t, func() bool { return network.left() == 0 }, "the lost replies")
		}
	})
}

func TestLostRepliesDoNotChangeTheOrder(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		network := newProxy(t, s)
		messages := subscribe(t, s, "t", through(network.client(t)), leaseOf(10*time.Minute))
		want := numbered(0, 400)
		publish(t, newPublisher(t, s), "t", want...)
		lost := 0
		for done := 0; done < len(want); {
			msg := receive(t, messages)
			require.Equal(t, want[done], string(msg.Payload))
			if done%50 == 40 && deliveryOf(t, msg).Number <= 2 {
				// Together with the nack; the client tries four times before it gives up.
				network.loseReplies(1+lost%2*3, ":claim:", func() {})
				require.True(t, msg.Nack())
				eventually(t, func() bool { return network.left() == 0 }, "the lost reply")
				lost++
				continue
			}
			done++
			require.True(t, msg.Ack())
		}
		require.Equal(t, 16, lost)
	})
}

func TestLeasesOfAWorkerThatIsGoneRunOut(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		publish(t, newPublisher(t, s), "t", "x")
		sub := newSubscriber(t, s, leaseOf(time.Second), closingWithin(time.Millisecond))
		gone := receive(t, subscribeTo(t, sub, "t"))
		require.NoError(t, sub.Close())
		require.ErrorIs(t, context.Cause(gone.Context()), redisdelay.ErrClosed)
		end := deadlines(t, s, "t")[0]

		msg := receive(t, subscribe(t, s, "t", leaseOf(time.Second)))
		require.False(t, serverTime(t, s).Before(end), "handlers do not overlap")
		require.Equal(t, 1, deliveryOf(t, msg).Number)
		require.True(t, msg.Ack())
	})
}

func TestLeasesThatEndTogetherComeBackInOrder(t *testing.T) {
	s := embedded(t)
	drained(t, s)
	start := serverTime(t, s)
	s.Mini.SetTime(start)
	const lease = 10 * time.Minute
	publish(t, newPublisher(t, s), "t", "a", "b", "c")
	gone := newSubscriber(t, s, leaseOf(lease), inFlight(3), closingWithin(time.Millisecond))
	messages := subscribeTo(t, gone, "t")
	for range 3 {
		receive(t, messages)
	}
	require.NoError(t, gone.Close())

	stop := schedule(t, s)
	for ms := range 3 { // the scheduler looks at the very millisecond
		s.Mini.SetTime(start.Add(lease + time.Duration(ms)*time.Millisecond))
		eventually(t, func() bool { return stateOf(t, s, "t").Ready > 0 }, "the end of the leases")
	}
	eventually(t, func() bool { return stateOf(t, s, "t").Ready == 3 }, "the end of all leases")
	stop()
	require.Equal(t, []string{"a", "b", "c"}, consume(t, subscribe(t, s, "t"), 3))
}

// A failover to a server that has not heard of a claim: the message is ready there, and the same
// subscription claims it again. The lease that is lost is not the one that holds.
func TestAForgottenLeaseDoesNotEndTheNextLeaseOfItsMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", leaseOf(3*time.Second), inFlight(3))
		p := newPublisher(t, s)
		publish(t, p, "t", "x")
		first := receive(t, messages)
		forgetClaim(t, s, deliveryOf(t, first))
		publish(t, p, "t", "y") // which has it claim
		second := receive(t, messages)
		require.Equal(t, deliveryOf(t, first).ID, deliveryOf(t, second).ID)
		require.True(t, receive(t, messages).Ack())

		wait(t, first.Context().Done(), "the loss of the first lease")
		require.ErrorIs(t, context.Cause(first.Context()), redisdelay.ErrLeaseLost)
		require.True(t, second.Ack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the ack counts")
	})
}

func forgetClaim(t *testing.T, s redistest.Server, d redisdelay.Delivery) {
	t.Helper()
	keys := queue.NewKeys(s.Prefix, d.Topic)
	_, err := s.Client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZRem(ctx, keys.Unack(d.Group), d.ID)
		pipe.HDel(ctx, keys.Leases(d.Group), d.ID)
		pipe.LPush(ctx, keys.Ready(d.Group), fmt.Sprintf("%s:%d", d.ID, d.DueAt.UnixMilli()))
		return nil
	})
	require.NoError(t, err)
}
