package redisdelay_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestDelaysOfAllKindsAreKept(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t")
		p := newPublisher(t, s)
		before := serverTime(t, s)

		withContext := text("context")
		withContext.SetContext(delay.WithContext(ctx, delay.For(80*time.Millisecond)))
		watermills := text("metadata")
		delay.Message(watermills, delay.For(120*time.Millisecond))
		until := text("until")
		redisdelay.DelayUntil(until, before.Add(200*time.Millisecond))
		require.NoError(t, p.Publish("t", until, watermills, withContext, delayed("delay", 50*time.Millisecond),
			delayed("fraction", time.Millisecond+time.Nanosecond), delayed("none", 0)))
		after := serverTime(t, s)

		want := map[string]time.Duration{"none": 0, "fraction": 2 * time.Millisecond, "delay": 50 * time.Millisecond,
			"context": 80 * time.Millisecond, "metadata": 120 * time.Millisecond}
		var last time.Time
		for range 6 {
			msg := receive(t, messages)
			received := serverTime(t, s)
			kind := string(msg.Payload)
			due := deliveryOf(t, msg).DueAt
			require.False(t, received.Before(due), "%s is early: due at %v, received at %v", kind, due, received)
			require.False(t, due.Before(last), "%s is not in the order of the due times", kind)
			last = due
			if kind == "until" {
				least := before.Add(200 * time.Millisecond)
				require.False(t, due.Before(least), "%s is due too early", kind)
				if after.After(least) { // on a slow machine it was due already when it was published
					least = after
				}
				require.False(t, due.After(least.Add(time.Millisecond)), "%s is due too late", kind)
			} else {
				least := before.Add(want[kind])
				if kind == "none" { // no delay at all is due at once, within the same millisecond
					least = least.Truncate(time.Millisecond)
				}
				require.False(t, due.Before(least), "%s is due too early", kind)
				require.False(t, due.After(after.Add(want[kind]+2*time.Millisecond)), "%s is due too late", kind)
			}
			for _, key := range []string{"delay", "delay_until", delay.DelayedForKey, delay.DelayedUntilKey} {
				require.NotContains(t, msg.Metadata, key)
			}
			require.True(t, msg.Ack())
		}
	})
}

func TestDueTimesAreRoundedUpToTheMillisecond(t *testing.T) {
	s := embedded(t)
	base := time.UnixMilli(serverTime(t, s).UnixMilli())
	s.Mini.SetTime(base.Add(999 * time.Microsecond))
	p := newPublisher(t, s)
	until := text("until")
	redisdelay.DelayUntil(until, base.Add(5*time.Millisecond+1))
	require.NoError(t, p.Publish("t", delayed("millisecond", time.Millisecond), delayed("nanosecond", 1), until))
	k := queue.NewKeys(s.Prefix, "t")
	scores := func(key string) (ms []int64) {
		for _, z := range s.Client.ZRangeWithScores(ctx, key, 0, -1).Val() {
			ms = append(ms, int64(z.Score)-base.UnixMilli())
		}
		return ms
	}
	require.Equal(t, []int64{2, 2, 6}, scores(k.Pending()))

	publish(t, p, "t", "now")
	nackWith(t, receive(t, subscribe(t, s, "t")), redisdelay.DelayKey, "1ms")
	eventually(t, func() bool { return stateOf(t, s, "t").Retrying == 1 }, "the nack")
	require.Equal(t, []int64{2}, scores(k.Retry(redisdelay.DefaultConsumerGroup)))
}

func TestAPublisherWrappedByWatermillsDelaysToo(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		register(t, s, "t")
		wrapped, err := delay.NewPublisher(newPublisher(t, s), delay.PublisherConfig{
			DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) { return delay.For(never), nil },
		})
		require.NoError(t, err)
		publish(t, wrapped, "t", "x")
		require.Equal(t, state{Bodies: 1, Waiting: 1}, stateOf(t, s, "t"))
	})
}

func TestAMessagePublishedOnIsNotDelayedTwice(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		messages := subscribe(t, s, "from")
		register(t, s, "to")
		context := text("context")
		context.SetContext(delay.WithContext(ctx, delay.For(5*time.Millisecond)))
		watermills := text("watermill")
		delay.Message(watermills, delay.For(5*time.Millisecond))
		until := text("until")
		redisdelay.DelayUntil(until, time.Now().Add(5*time.Millisecond))
		require.NoError(t, p.Publish("from", delayed("delay", 5*time.Millisecond), until, context, watermills))
		for i := range 4 {
			msg := receive(t, messages)
			require.NoError(t, p.Publish("to", msg, msg.Copy()))
			require.True(t, msg.Ack())
			require.NoError(t, p.Publish("to", msg), "the context of a settled message does not count")
			n := int64(3 * (i + 1))
			require.Equal(t, state{Bodies: n, Ready: n}, stateOf(t, s, "to"))
		}
	})
}

// nackWith nacks a message as a handler does that asks for a delay by metadata.
func nackWith(t *testing.T, msg *message.Message, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	require.True(t, msg.Nack())
}

// nackAfter asks for a delay by Watermill's metadata.
func nackAfter(t *testing.T, msg *message.Message, d time.Duration) {
	t.Helper()
	delay.Message(msg, delay.For(d))
	require.True(t, msg.Nack())
}

func TestANackIsDelayedByTheMetadataOfTheMessage(t *testing.T) {
	kinds := map[string]func(t *testing.T, msg *message.Message, until time.Time){
		"delay": func(t *testing.T, msg *message.Message, _ time.Time) { nackWith(t, msg, "delay", "60ms") },
		"delay_until": func(t *testing.T, msg *message.Message, until time.Time) {
			nackWith(t, msg, "delay_until", until.Format(time.RFC3339Nano))
		},
		"Watermill's": func(t *testing.T, msg *message.Message, _ time.Time) { nackAfter(t, msg, 60*time.Millisecond) },
	}
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		for kind, nack := range kinds {
			messages := subscribe(t, s, kind, func(c *redisdelay.SubscriberConfig) {
				c.Backoff = func(int) time.Duration { return never }
			})
			require.NoError(t, p.Publish(kind, delayed("x", 5*time.Millisecond)))
			msg := receive(t, messages)
			least := serverTime(t, s).Add(60 * time.Millisecond)
			nack(t, msg, least)

			again := receive(t, messages)
			received := serverTime(t, s)
			d := deliveryOf(t, again)
			require.Equal(t, 2, d.Number)
			require.False(t, d.DueAt.Before(least), "%s: due too early", kind)
			require.False(t, received.Before(d.DueAt), "%s: delivered too early", kind)
			for _, key := range []string{"delay", "delay_until", delay.DelayedUntilKey} {
				require.NotContains(t, again.Metadata, key)
			}
			if kind == "Watermill's" {
				require.Equal(t, "60ms", again.Metadata[delay.DelayedForKey])
			} else {
				require.NotContains(t, again.Metadata, delay.DelayedForKey)
			}
			require.True(t, again.Ack())
		}
	})
}

func TestADelayOfANackThatCannotBeReadMeansBackoff(t *testing.T) {
	bad := map[string][]string{
		"malformed":   {"delay", "soon"},
		"negative":    {"delay", "-1s"},
		"two":         {"delay", "1h", "delay_until", "2100-01-01T00:00:00Z"},
		"Watermill's": {delay.DelayedUntilKey, "later", delay.DelayedForKey, "1h"},
	}
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		for kind, pairs := range bad {
			book := &logbook{}
			numbers := make(chan int, 1)
			sub := newLoggingSubscriber(t, s, book.logger(), func(c *redisdelay.SubscriberConfig) {
				c.Backoff = func(n int) time.Duration { numbers <- n; return 0 }
			})
			messages := subscribeTo(t, sub, kind)
			publish(t, p, kind, "x")
			nackWith(t, receive(t, messages), pairs...)
			require.Equal(t, 1, wait(t, numbers, "Backoff"))
			require.Equal(t, []string{"x"}, consume(t, messages, 1))
			logged := book.find("error", "redisdelay.subscriber")
			require.Len(t, logged, 1)
			require.ErrorIs(t, logged[0].err, redisdelay.ErrInvalidDelay)
		}
	})
}

func TestWatermillsDurationIsGivenBackWhereANackSetIt(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t")
		first := delayed("x", 0)
		first.Metadata.Set(delay.DelayedForKey, "24h0m0s") // as of an earlier life
		require.NoError(t, newPublisher(t, s).Publish("t", first))

		msg := receive(t, messages)
		require.NotContains(t, msg.Metadata, delay.DelayedForKey, "the publisher set it")
		nackAfter(t, msg, 2*time.Millisecond)
		msg = receive(t, messages)
		require.Equal(t, "2ms", msg.Metadata[delay.DelayedForKey])
		require.True(t, msg.Nack()) // by Backoff
		msg = receive(t, messages)
		require.Equal(t, "2ms", msg.Metadata[delay.DelayedForKey], "it is remembered over other nacks")
		nackAfter(t, msg, 3*time.Millisecond)
		msg = receive(t, messages)
		require.Equal(t, "3ms", msg.Metadata[delay.DelayedForKey])
		require.Equal(t, 4, deliveryOf(t, msg).Number)
		require.True(t, msg.Ack())
	})
}

func TestWatermillsDurationIsGivenBackWhereAHandlerPublishedIt(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		from, to := subscribe(t, s, "from"), subscribe(t, s, "to")
		publish(t, p, "from", "x")

		// As a poison queue or requeuer behind DelayOnError does.
		msg := receive(t, from)
		delay.Message(msg, delay.For(2*time.Millisecond))
		require.NoError(t, p.Publish("to", msg))
		require.True(t, msg.Ack())
		passed := receive(t, to)
		require.Equal(t, "2ms", passed.Metadata[delay.DelayedForKey])
		require.NotContains(t, passed.Metadata, delay.DelayedUntilKey)

		// A message of its own, not one that was delivered.
		require.NoError(t, p.Publish("from", passed.Copy()))
		require.True(t, passed.Ack())
		msg = receive(t, from)
		require.NotContains(t, msg.Metadata, delay.DelayedForKey)
		require.True(t, msg.Ack())
	})
}

func TestDelayOnErrorGrowsFromNackToNack(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		onError := middleware.DelayOnError{
			InitialInterval: 2 * time.Millisecond, MaxInterval: 12 * time.Millisecond, Multiplier: 2,
		}
		// fail handles a message as a router does, and returns the delay that the handler saw.
		fail := func(msg *message.Message) string {
			seen := msg.Metadata[delay.DelayedForKey]
			_, err := onError.Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, errors.New("failed")
			})(msg)
			require.Error(t, err)
			require.True(t, msg.Nack())
			return seen
		}
		a, b := subscribe(t, s, "t", inGroup("a")), subscribe(t, s, "t", inGroup("b"))
		first := text("x")
		delay.Message(first, delay.For(100*time.Millisecond))
		require.NoError(t, newPublisher(t, s).Publish("t", first))

		for _, want := range []string{"", "2ms", "4ms", "8ms", "12ms", "12ms"} {
			require.Equal(t, want, fail(receive(t, a)))
		}
		require.Equal(t, "", fail(receive(t, b)), "the groups have nothing to do with each other")
		require.Equal(t, []string{"x"}, consume(t, a, 1))
		require.Equal(t, []string{"x"}, consume(t, b, 1))
	})
}

func TestDelayOnErrorGrowsFromPublishToPublish(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		onError := middleware.DelayOnError{
			InitialInterval: 2 * time.Millisecond, MaxInterval: 12 * time.Millisecond, Multiplier: 2,
		}
		p := newPublisher(t, s)
		messages := subscribe(t, s, "t")
		publish(t, p, "t", "x")
		for _, want := range []string{"", "2ms", "4ms", "8ms", "12ms", "12ms"} {
			msg := receive(t, messages)
			require.Equal(t, want, msg.Metadata[delay.DelayedForKey])
			_, err := onError.Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, errors.New("failed")
			})(msg)
			require.Error(t, err)
			require.NoError(t, p.Publish("t", msg))
			require.True(t, msg.Ack())
		}
		consume(t, messages, 1)
	})
}

func TestDelayedTellsWhetherPublishDelays(t *testing.T) {
	t.Parallel()
	withWatermills := text("metadata")
	delay.Message(withWatermills, delay.For(time.Minute))
	inContext := text("context")
	inContext.SetContext(delay.WithContext(ctx, delay.For(time.Minute)))
	left := withMetadata(delay.DelayedForKey, "1m0s") // of an earlier retry
	for _, c := range []struct {
		name string
		msg  *message.Message
		want bool
	}{
		{"delay", delayed("x", time.Nanosecond), true},
		{"no delay", delayed("x", 0), false},
		{"nothing", text("x"), false},
		{"an instant that is past", withMetadata("delay_until", "2001-01-01T00:00:00Z"), true},
		{"Watermill's keys", withWatermills, true},
		{"Watermill's duration alone", left, false},
		{"context", inContext, true},
	} {
		got, err := redisdelay.Delayed(c.msg)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
	for _, odd := range []*message.Message{withMetadata("delay", "15 minutes"), withMetadata("delay_until", "soon")} {
		_, err := redisdelay.Delayed(odd)
		require.ErrorIs(t, err, redisdelay.ErrInvalidDelay)
	}
}
