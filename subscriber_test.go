package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestSubscriberConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	client := clientOf(t, "127.0.0.1:1")
	var typedNil *redis.ClusterClient
	cases := map[string]struct {
		config redisdelay.SubscriberConfig
		names  []string
	}{
		"nothing":          {redisdelay.SubscriberConfig{}, []string{"Client is nil"}},
		"typed nil client": {redisdelay.SubscriberConfig{Client: typedNil}, []string{"Client", "nil *redis.ClusterClient"}},
		"Ring":             {redisdelay.SubscriberConfig{Client: newRing(t)}, []string{"Client", "*redis.Ring"}},
		"brace":            {redisdelay.SubscriberConfig{Client: client, KeyPrefix: "a{b"}, []string{"KeyPrefix", `"a{b"`}},
		"short lease":      {redisdelay.SubscriberConfig{Client: client, LeaseDuration: 9 * time.Millisecond}, []string{"LeaseDuration is 9ms", "10ms"}},
		"negative lease":   {redisdelay.SubscriberConfig{Client: client, LeaseDuration: -time.Second}, []string{"LeaseDuration is -1s"}},
		"all at once": {
			redisdelay.SubscriberConfig{
				KeyPrefix: "{}", ConsumerGroup: strings.Repeat("g", 513), MaxInFlight: -1, LeaseDuration: 1, CloseTimeout: -1,
				MaxDead: -2,
			},
			[]string{"Client", "KeyPrefix", "ConsumerGroup", "513 bytes", "MaxInFlight is -1", "LeaseDuration is 1ns", "CloseTimeout is -1ns", "MaxDead is -2"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sub, err := redisdelay.NewSubscriber(c.config, nil)
			require.Nil(t, sub)
			require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
			for _, named := range c.names {
				require.ErrorContains(t, err, named)
			}
			require.Equal(t, err.Error(), c.config.Validate().Error())
		})
	}
}

func TestBadTopicsAreNotSubscribedTo(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		sub := newSubscriber(t, s)
		for _, topic := range []string{"", strings.Repeat("x", 513)} {
			_, err := sub.Subscribe(ctx, topic)
			require.ErrorIs(t, err, redisdelay.ErrInvalidTopic)
			require.ErrorIs(t, sub.SubscribeInitialize(topic), redisdelay.ErrInvalidTopic)
		}
		require.Empty(t, keysOf(t, s))
	})
}

func TestATopicOfAnotherLayoutIsLeftAlone(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		meta := queue.NewKeys(s.Prefix, "t").Meta()
		require.NoError(t, s.Client.HSet(ctx, meta, "layout", "0", "groups", "x").Err())
		_, err := newSubscriber(t, s).Subscribe(ctx, "t")
		require.ErrorIs(t, err, redisdelay.ErrLayout)
		require.ErrorIs(t, newPublisher(t, s).Publish("t", text("x")), redisdelay.ErrLayout)
		require.Zero(t, stateOf(t, s, "t"))
		require.NoError(t, s.Client.Del(ctx, meta).Err())
	})
}

func TestADeliveryDescribesItself(t *testing.T) {
	type key struct{}
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		valued, cancel := context.WithTimeout(context.WithValue(ctx, key{}, "value"), never)
		defer cancel()
		messages, err := newSubscriber(t, s, inGroup("g")).Subscribe(valued, "t")
		require.NoError(t, err)
		before := serverTime(t, s)
		require.NoError(t, newPublisher(t, s).Publish("t", delayed("x", 20*time.Millisecond)))

		msg := receive(t, messages)
		first := deliveryOf(t, msg)
		require.Len(t, first.ID, 26)
		require.Equal(t, redisdelay.Delivery{ID: first.ID, Topic: "t", Group: "g", Number: 1, DueAt: first.DueAt}, first)
		require.False(t, first.DueAt.Before(before.Add(20*time.Millisecond)))
		require.False(t, serverTime(t, s).Before(first.DueAt))
		require.Equal(t, "value", msg.Context().Value(key{}))
		derived, ok := redisdelay.DeliveryFromContext(context.WithValue(msg.Context(), key{}, "other"))
		require.True(t, ok)
		require.Equal(t, first, derived)
		_, ok = redisdelay.DeliveryFromContext(valued)
		require.False(t, ok)
		require.NoError(t, msg.Context().Err())
		_, ok = msg.Context().Deadline()
		require.False(t, ok)

		require.True(t, msg.Nack())
		wait(t, msg.Context().Done(), "the context of a nacked message")
		require.NotErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrLeaseLost)

		msg = receive(t, messages)
		second := deliveryOf(t, msg)
		require.Equal(t, redisdelay.Delivery{
			ID: first.ID, Topic: "t", Group: "g", Number: 2, Redelivered: true, DueAt: first.DueAt,
		}, second)
		require.True(t, msg.Ack())
		wait(t, msg.Context().Done(), "the context of an acked message")
		require.NotErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrClosed)
	})
}

func TestAnAckedMessageIsGone(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", numbered(0, 30)...)
		require.Equal(t, numbered(0, 30), consume(t, messages, 30))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "everything is gone")
	})
}

func TestANackedMessageComesAgainAfterBackoff(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		numbers := make(chan int, 10)
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(n int) time.Duration {
				numbers <- n
				return []time.Duration{0, 30 * time.Millisecond, 60 * time.Millisecond, 0, -never}[n]
			}
		})
		publish(t, newPublisher(t, s), "t", "x")
		var least, firstDue time.Time
		for number := 1; number <= 5; number++ {
			msg := receive(t, messages)
			received := serverTime(t, s)
			d := deliveryOf(t, msg)
			require.Equal(t, number, d.Number)
			require.Equal(t, number > 1, d.Redelivered)
			switch number {
			case 1:
				firstDue = d.DueAt
			case 2, 3:
				require.False(t, d.DueAt.Before(least), "due before its backoff was over")
				require.False(t, received.Before(d.DueAt), "early")
			}
			if number == 5 {
				require.True(t, d.DueAt.After(firstDue))
				require.True(t, msg.Ack())
				break
			}
			least = serverTime(t, s).Add(time.Duration(number) * 30 * time.Millisecond)
			require.True(t, msg.Nack())
			require.Equal(t, number, wait(t, numbers, "Backoff"))
		}
	})
}

func TestAMessageOutOfDeliveriesIsDead(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 3 })
		other := subscribe(t, s, "t", inGroup("other"))
		p := newPublisher(t, s)
		fewer, more, unlimited := withMetadata("max_deliveries", "1"), withMetadata("max_deliveries", "5"), withMetadata("max_deliveries", "-7")
		require.NoError(t, p.Publish("t", text("usual"), fewer, more, unlimited, text("good")))
		delivered := map[string]int{}
		var ids []string
		for range 3 + 1 + 5 + 50 {
			msg := receive(t, messages)
			d := deliveryOf(t, msg)
			delivered[d.ID]++
			require.Equal(t, delivered[d.ID], d.Number)
			if d.Number == 1 {
				ids = append(ids, d.ID)
			}
			if d.Number == 50 {
				require.True(t, msg.Ack())
				break
			}
			require.True(t, msg.Nack())
		}
		require.Equal(t, []string{"good"}, consume(t, messages, 1), "what is behind a dead message comes")
		require.Equal(t, []int{3, 1, 5, 50}, []int{delivered[ids[0]], delivered[ids[1]], delivered[ids[2]], delivered[ids[3]]})
		consume(t, other, 5)
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 3, Dead: 3} }, "three dead messages")
		require.Equal(t, map[string]string{
			ids[0]: "3 - - nacked on the last of 3 deliveries",
			ids[1]: "1 - - nacked on the last of 1 deliveries",
			ids[2]: "5 - - nacked on the last of 5 deliveries",
		}, records(t, s, "t"))
	})
}

func TestAHopelessMessageIsDeadWithItsNack(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = -1 })
		publish(t, newPublisher(t, s), "t", "hopeless", "acked", "good")
		msg := receive(t, messages)
		id := deliveryOf(t, msg).ID
		require.True(t, redisdelay.DeadOnNack(msg, errors.New("no such order")))
		redisdelay.DelayFor(msg, never) // which does not count
		require.True(t, msg.Nack())
		msg = receive(t, messages)
		require.True(t, redisdelay.DeadOnNack(msg, errors.New("no such order")))
		require.True(t, msg.Ack())
		require.Equal(t, []string{"good"}, consume(t, messages, 1))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "one dead message")
		require.Equal(t, map[string]string{id: "1 - - no such order"}, records(t, s, "t"))

		publish(t, newPublisher(t, s), "t", "hopeless")
		msg = receive(t, messages)
		require.True(t, redisdelay.DeadOnNack(msg, nil))
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 2, Dead: 2} }, "another")
		require.Equal(t, "1 - - no reason given", records(t, s, "t")[deliveryOf(t, msg).ID])
	})
	require.False(t, redisdelay.DeadOnNack(text("not delivered"), errors.New("no such order")))
}

// Number stays the same, and the delay of the metadata and Backoff do not matter.
func TestAPostponedMessageWaitsAndUsesUpNoDelivery(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		const wait = 30 * time.Millisecond
		book := &logbook{}
		messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), func(c *redisdelay.SubscriberConfig) {
			c.MaxDeliveries = 1
			c.Backoff = func(int) time.Duration { return 0 }
		}), "t")
		publish(t, newPublisher(t, s), "t", "x", "newer")
		for n := range 5 {
			msg := receive(t, messages)
			require.Equal(t, "x", string(msg.Payload))
			d := deliveryOf(t, msg)
			require.Equal(t, 1, d.Number)
			require.Equal(t, n > 0, d.Redelivered)
			require.True(t, redisdelay.DeadOnNack(msg, errors.New("the last call counts")))
			require.NoError(t, redisdelay.Postpone(msg, wait))
			redisdelay.DelayFor(msg, never)
			least := serverTime(t, s).Add(wait)
			require.True(t, msg.Nack())
			if n == 0 {
				require.Equal(t, []string{"newer"}, consume(t, messages, 1))
			}
			if n < 4 {
				continue
			}
			msg = receive(t, messages)
			require.False(t, serverTime(t, s).Before(least), "early")
			require.Empty(t, deathsIn(book))
			require.NoError(t, redisdelay.Postpone(msg, never))
			require.True(t, redisdelay.DeadOnNack(msg, errors.New("the last call counts")))
			require.True(t, msg.Nack())
		}
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "the dead letter")
		for _, record := range records(t, s, "t") {
			require.Equal(t, "1 - - the last call counts", record)
		}
		requeued, err := adminOf(t, s).PurgeDead(ctx, "t", admin.Bulk{})
		require.NoError(t, err)
		require.Equal(t, 1, requeued)
	})
}

func TestWhatCannotBePostponedIsRefused(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		require.ErrorIs(t, redisdelay.Postpone(text("not delivered"), time.Second), redisdelay.ErrNotDelivered)
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 1 })
		publish(t, newPublisher(t, s), "t", "x")
		msg := receive(t, messages)
		for _, d := range []time.Duration{0, -1, redisdelay.MaxDelay + 1} {
			err := redisdelay.Postpone(msg, d)
			require.ErrorIs(t, err, redisdelay.ErrInvalidDelay)
			require.ErrorContains(t, err, d.String())
		}
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "the nack counts as ever")
	})
}

// A postponed message that is too late is not handed over again.
func TestAPostponedMessageExpires(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t")
		msg := text("x")
		redisdelay.ExpireAt(msg, serverTime(t, s).Add(time.Minute), redisdelay.ExpiryDead)
		require.NoError(t, newPublisher(t, s).Publish("t", msg))
		msg = receive(t, messages)
		id := deliveryOf(t, msg).ID
		require.NoError(t, redisdelay.Postpone(msg, time.Minute+time.Second))
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t").Retrying == 1 }, "it waits")
		require.NoError(t, adminOf(t, s).Reschedule(ctx, "t", admin.ByID(id), admin.At(serverTime(t, s))))
		msg = receive(t, messages)
		require.NoError(t, redisdelay.Postpone(msg, 2*time.Minute))
		require.True(t, msg.Nack())
		if s.Mini == nil {
			return // a minute is too long
		}
		eventually(t, func() bool { return stateOf(t, s, "t").Retrying == 1 }, "it waits again")
		jump(t, s, 3*time.Minute)
		testkit.LookNow(t, s)
		eventually(t, func() bool { return stateOf(t, s, "t").Dead == 1 }, "it is too late")
		require.Equal(t, map[string]string{id: "0 d - not delivered in time"}, records(t, s, "t"))
		page, err := adminOf(t, s).List(ctx, "t", admin.Query{State: admin.Dead})
		require.NoError(t, err)
		require.True(t, page.Messages[0].Places[0].Redelivered)
	})
}

func TestPostponeOnErrorPostponesForAnErrorThatAsksForIt(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 2 })
		publish(t, newPublisher(t, s), "t", "x")
		made := []*message.Message{text("made")}
		closed := errors.New("the shop is closed")
		run := func(msg *message.Message, err error) error {
			t.Helper()
			produced, got := redisdelay.PostponeOnError(func(*message.Message) ([]*message.Message, error) { return made, err })(msg)
			require.Equal(t, made, produced)
			require.ErrorIs(t, got, err)
			return got
		}
		later := func(d time.Duration) error {
			return fmt.Errorf("handle: %w", &redisdelay.PostponeError{Delay: d, Err: closed})
		}

		for range 3 {
			msg := receive(t, messages)
			require.Equal(t, 1, deliveryOf(t, msg).Number)
			err := run(msg, later(time.Millisecond))
			require.ErrorIs(t, err, closed)
			require.EqualError(t, err, "handle: postponed by 1ms: the shop is closed")
			require.True(t, msg.Nack())
		}

		msg := receive(t, messages)
		require.ErrorIs(t, run(msg, later(0)), redisdelay.ErrInvalidDelay)
		_ = run(msg, later(never))
		_ = run(msg, errors.New("as in a second try of Watermill's Retry"))
		redisdelay.DelayFor(msg, 0)
		require.True(t, msg.Nack())
		msg = receive(t, messages)
		require.Equal(t, 2, deliveryOf(t, msg).Number)
		require.ErrorIs(t, run(text("not delivered"), later(time.Second)), redisdelay.ErrNotDelivered)
		require.NoError(t, run(msg, nil))
		require.True(t, msg.Ack())
	})
	require.EqualError(t, &redisdelay.PostponeError{Delay: time.Hour}, "postponed by 1h0m0s")
}

// A message that a handler makes is another one, even with the context of the delivered one.
func TestHelpersOnAnotherMessageLeaveTheDeliveredOneAlone(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", "x")
		msg := receive(t, messages)
		id := deliveryOf(t, msg).ID
		made := text("made")
		made.SetContext(msg.Context())
		require.False(t, redisdelay.DeadOnNack(made, errors.New("no such order")))
		fail := redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("failed") })
		_, err := fail(made)
		require.Error(t, err)
		redisdelay.DelayFor(msg, never)
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Retrying: 1} }, "a retry")
		require.Equal(t, map[string]string{id: "1 - -"}, records(t, s, "t"))
	})
}

// The UUID is the consumer's to change, and a copy is the same message to whoever made it.
func TestHelpersTakeTheDeliveredMessageOrACopy(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", "x", "y")
		msg := receive(t, messages)
		require.True(t, redisdelay.DeadOnNack(msg.CopyWithContext(), errors.New("no such order")))
		require.True(t, msg.Nack())
		msg = receive(t, messages)
		msg.UUID = "another"
		require.True(t, redisdelay.DeadOnNack(msg, errors.New("no such order")))
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 2, Dead: 2} }, "two dead messages")
	})
}

// Watermill lets messages go without UUID.
func TestMessagesWithoutUUIDAreToldApart(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		messages := subscribe(t, s, "t")
		require.NoError(t, p.Publish("t", message.NewMessage("", []byte("handled"))))
		handled := receive(t, messages)
		made := message.NewMessageWithContext(handled.Context(), "", []byte("made"))
		require.False(t, redisdelay.DeadOnNack(made, nil))
		made.SetContext(delay.WithContext(handled.Context(), delay.For(never)))
		later, err := delay.NewPublisher(p, delay.PublisherConfig{})
		require.NoError(t, err)
		require.NoError(t, later.Publish("later", made))
		require.True(t, redisdelay.DeadOnNack(handled, nil))
		require.True(t, handled.Ack())
		page, err := adminOf(t, s).List(ctx, "later", admin.Query{State: admin.Waiting, Limit: 2})
		require.NoError(t, err)
		require.Empty(t, page.Messages[0].Metadata, "its delay is its own, and no retry's")
	})
}

func TestAnUnmarshalerThatPanicsCostsItsMessageOnly(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.Unmarshaler = panickingUnmarshaler{} })
		publish(t, newPublisher(t, s), "t", "panic", "x")
		require.Equal(t, []string{"x"}, consume(t, messages, 1))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "the other is dead")
		page, err := adminOf(t, s).List(ctx, "t", admin.Query{State: admin.Dead, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "unmarshal: the Unmarshaler panicked: out of order", page.Messages[0].Places[0].Reason)
	})
}

type panickingUnmarshaler struct{ redisdelay.BinaryMarshaler }

func (u panickingUnmarshaler) Unmarshal(topic string, body []byte) (*message.Message, error) {
	msg, err := u.BinaryMarshaler.Unmarshal(topic, body)
	if err == nil && string(msg.Payload) == "panic" {
		panic("out of order")
	}
	return msg, err
}

func TestNegativeMaxDeliveriesIsNoLimit(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = -1 })
		publish(t, newPublisher(t, s), "t", "x")
		for number := 1; number < 40; number++ {
			msg := receive(t, messages)
			require.Equal(t, number, deliveryOf(t, msg).Number)
			require.True(t, msg.Nack())
		}
		consume(t, messages, 1)
	})
}

func TestDeadMessagesArePurgedAfterTheirRetention(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		retention, kept, purged time.Duration
	}{
		"by default": {0, 30*day - time.Minute, 30*day + time.Minute},
		"as set":     {time.Hour, 59 * time.Minute, 61 * time.Minute},
		"never":      {-1, 50 * 365 * day, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := embedded(t)
			retention := func(config *redisdelay.SubscriberConfig) {
				config.MaxDeliveries, config.DeadRetention = 1, c.retention
			}
			start := serverTime(t, s)
			messages := subscribe(t, s, "t", retention)
			p := newPublisher(t, s)
			publish(t, p, "t", "a", "b")
			require.True(t, receive(t, messages).Nack())
			require.True(t, receive(t, messages).Nack())
			require.NoError(t, p.Publish("t", delayed("c", c.kept-time.Minute)))
			eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 3, Waiting: 1, Dead: 2} }, "two dead messages")

			s.Mini.SetTime(start.Add(c.kept))
			stop := schedule(t, s)
			require.True(t, receive(t, merged(t, messages, subscribe(t, s, "t", retention))).Nack())
			stop()
			require.Equal(t, state{Bodies: 3, Dead: 3}, settledState(t, s, "t"), "they are kept")
			if c.purged > 0 {
				s.Mini.SetTime(start.Add(c.purged))
				stop := schedule(t, s)
				eventually(t, func() bool { return stateOf(t, s, "t").Dead < 3 }, "they are purged")
				stop()
				require.Equal(t, state{Bodies: 1, Dead: 1}, stateOf(t, s, "t"), "c died later")
				require.Len(t, records(t, s, "t"), 1)
			}
		})
	}
}

func TestTheOldestOfTooManyDeadLettersArePurgedAtOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		logged := &logbook{}
		sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, MaxDeliveries: 1,
			DeadRetention: -1, MaxDead: 2, TakeoverWindow: -1}, logged.logger())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		messages, err := sub.Subscribe(t.Context(), "t")
		require.NoError(t, err)
		p := newPublisher(t, s)
		publish(t, p, "t", "1", "2", "3", "4", "5")
		for range 5 {
			require.True(t, receive(t, messages).Nack())
		}
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		group := func() admin.GroupStats {
			stats, err := a.Stats(t.Context(), "t")
			require.NoError(t, err)
			require.Len(t, stats.Groups, 1)
			return stats.Groups[0]
		}
		eventually(t, func() bool { return group().Counters.DeadPurged == 3 }, "the oldest are purged")
		require.Equal(t, state{Bodies: 2, Dead: 2}, settledState(t, s, "t"))
		require.Equal(t, 2, group().MaxDead)
		lines := func() (messages int) {
			for _, line := range logged.said("The oldest dead letters were deleted, because the group had more than MaxDead") {
				require.Equal(t, "error", line.level)
				require.Equal(t, "t", line.fields["topic"])
				require.Equal(t, redisdelay.DefaultConsumerGroup, line.fields["consumer_group"])
				messages += line.fields["messages"].(int)
			}
			return messages
		}
		eventually(t, func() bool { return lines() == 3 }, "the scheduler logs what it deleted")
	})
}

func TestBytesThatAreNoMessageAreDeadAtOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		book := &logbook{}
		messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger()), "t")
		json := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Marshaler = redisdelay.JSONMarshaler{} })
		publish(t, json, "t", "not binary", "nor this")
		publish(t, newPublisher(t, s), "t", "good")
		require.Equal(t, []string{"good"}, consume(t, messages, 1))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 2, Dead: 2} }, "two dead messages")
		for _, record := range records(t, s, "t") {
			require.Regexp(t, `^0 - - unmarshal: malformed message: `, record)
		}
		logged := book.find("error", "redisdelay.subscriber")
		require.Len(t, logged, 2)
		require.ErrorIs(t, logged[0].err, redisdelay.ErrMalformed)
		require.NotEmpty(t, logged[0].fields["message_id"])
	})
}

func TestANackWithoutDelayKeepsTheMessagesPlace(t *testing.T) {
	for name, kind := range map[string]struct {
		backoff time.Duration
		nack    []string
	}{
		"by backoff":     {0, nil},
		"by delay":       {never, []string{"delay", "0s"}},
		"by delay_until": {never, []string{"delay_until", "2020-01-01T00:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				p := newPublisher(t, s)
				messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) {
					c.Backoff = func(int) time.Duration { return kind.backoff }
				})
				want := numbered(0, 900) // more than are claimed ahead
				publish(t, p, "t", want...)
				var got []string
				for len(got) < len(want) {
					msg := receive(t, messages)
					require.Equal(t, want[len(got)], string(msg.Payload))
					if n := len(got); n%50 == 30 && deliveryOf(t, msg).Number <= 3 {
						nackWith(t, msg, kind.nack...)
						continue
					}
					got = append(got, string(msg.Payload))
					require.True(t, msg.Ack())
				}
			})
		})
	}
}

func TestANackWithADelayHoldsUpNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", numbered(0, 100)...)
		require.Equal(t, numbered(0, 50), consume(t, messages, 50))
		nackWith(t, receive(t, messages), "delay", "1h")
		nackWith(t, receive(t, messages), "delay", "2s")
		require.Equal(t, numbered(52, 100), consume(t, messages, 48))
		require.Equal(t, numbered(51, 52), consume(t, messages, 1))
		require.Equal(t, state{Bodies: 1, Retrying: 1}, settledState(t, s, "t"))
	})
}

func TestMessagesComeInOrderOfDueTimeThenOfPublishing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t")
		p := newPublisher(t, s)
		base := serverTime(t, s).Add(time.Second).Truncate(time.Millisecond)
		until := func(payload string, d time.Duration) *message.Message {
			msg := text(payload)
			redisdelay.DelayUntil(msg, base.Add(d))
			return msg
		}
		require.NoError(t, p.Publish("t", until("5", 3*time.Millisecond), until("0", 0), until("3", time.Millisecond)))
		require.NoError(t, p.Publish("t", until("4", time.Millisecond), until("1", 0)))
		require.NoError(t, p.Publish("t", until("2", 0)))
		require.NoError(t, p.Publish("t", until("6", 3*time.Millisecond)))
		require.NoError(t, p.Publish("t", delayed("-2", 0), delayed("-1", 0)))
		require.Equal(t, []string{"-2", "-1", "0", "1", "2", "3", "4", "5", "6"}, consume(t, messages, 9))
	})
}

func TestMaxInFlightMessagesAreInHandExactly(t *testing.T) {
	for _, limit := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				messages := subscribe(t, s, "t", inFlight(limit))
				publish(t, newPublisher(t, s), "t", numbered(0, 10*limit)...)
				var hand []*message.Message
				for range limit {
					hand = append(hand, receive(t, messages))
				}
				for range 9 * limit {
					// Settling one makes room for one, by ack or, for a while, by nack.
					select {
					case msg := <-messages:
						require.Fail(t, "one too many", "%s", msg.Payload)
					default:
					}
					require.True(t, hand[0].Ack())
					hand = append(hand[1:], receive(t, messages))
				}
				select {
				case msg := <-messages:
					require.Fail(t, "one too many", "%s", msg.Payload)
				case <-time.After(20 * time.Millisecond):
				}
				for _, msg := range hand {
					require.True(t, msg.Ack())
				}
			})
		})
	}
}

func TestHandlersNeverExceedMaxInFlight(t *testing.T) {
	const limit, all = 4, 200
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "t", inFlight(limit))
		publish(t, newPublisher(t, s), "t", numbered(0, all)...)
		var held []*message.Message
		for range all {
			held = append(held, receive(t, messages))
			if len(held) < limit {
				continue
			}
			select {
			case <-messages:
				require.Fail(t, "one more than may be in flight")
			default:
			}
			held[0].Ack()
			held = held[1:]
		}
		for _, msg := range held {
			msg.Ack()
		}
	})
}

func TestEachGroupGetsEveryMessageOnce(t *testing.T) {
	const all = 150
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		type got struct{ group, payload string }
		consumed := make(chan got, 3*all)
		var wg sync.WaitGroup
		var subscribers []*redisdelay.Subscriber
		for i := range 6 {
			group := []string{"a", "b", "c"}[i%3]
			sub := newSubscriber(t, s, inGroup(group), inFlight(1+i/3*4))
			subscribers = append(subscribers, sub)
			messages := subscribeTo(t, sub, "t")
			wg.Go(func() {
				for msg := range messages {
					consumed <- got{group, string(msg.Payload)}
					msg.Ack()
				}
			})
		}
		p := newPublisher(t, s)
		publish(t, p, "t", numbered(0, all/2)...)
		for _, payload := range numbered(all/2, all) {
			require.NoError(t, p.Publish("t", delayed(payload, 20*time.Millisecond)))
		}
		times := map[got]int{}
		for range 3 * all {
			times[wait(t, consumed, "all messages")]++
		}
		for _, sub := range subscribers {
			require.NoError(t, sub.Close())
		}
		wg.Wait()
		require.Empty(t, consumed)
		require.Len(t, times, 3*all)
		require.Equal(t, []int{1}, slices.Compact(slices.Collect(maps.Values(times))))
	})
}

func TestMessagesWaitForTheFirstGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		publish(t, p, "t", "a")
		require.NoError(t, p.Publish("t", delayed("b", time.Millisecond)))
		require.Equal(t, state{Bodies: 2, Waiting: 2}, stateOf(t, s, "t"))

		first := subscribe(t, s, "t")
		require.Equal(t, []string{"a", "b"}, consume(t, first, 2))
		second := subscribe(t, s, "t", inGroup("second"))
		publish(t, p, "t", "c")
		require.Equal(t, []string{"c"}, consume(t, first, 1))
		require.Equal(t, []string{"c"}, consume(t, second, 1), "it gets what became due after it exists")
	})
}

func TestSubscribeInitializeMakesTheGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		sub := newSubscriber(t, s, inGroup("early"))
		require.NoError(t, sub.SubscribeInitialize("t"))
		require.NoError(t, sub.SubscribeInitialize("t"))
		publish(t, newPublisher(t, s), "t", "a", "b")
		late := subscribe(t, s, "t", inGroup("late"))
		early := subscribeTo(t, sub, "t")
		require.Equal(t, []string{"a", "b"}, consume(t, early, 2))
		publish(t, newPublisher(t, s), "t", "c")
		require.Equal(t, []string{"c"}, consume(t, early, 1))
		require.Equal(t, []string{"c"}, consume(t, late, 1))
	})
}

func TestSubscribeReportsTheErrorOfRedis(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("ended by the test"))
		_, err := newSubscriber(t, s).Subscribe(ended, "t")
		require.ErrorIs(t, err, context.Canceled)

		groups := queue.NewKeys(s.Prefix, "broken").Groups()
		require.NoError(t, s.Client.Set(ctx, groups, "of a wrong type", 0).Err())
		_, err = newSubscriber(t, s).Subscribe(ctx, "broken")
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorContains(t, err, `"broken"`)
		require.NoError(t, s.Client.Del(ctx, groups).Err())
	})
}
