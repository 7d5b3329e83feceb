package redisdelay_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// panicking is a logger that panics whenever it is called.
type panicking struct{ calls *atomic.Int32 }

func (l panicking) fail() { l.calls.Add(1); panic("no log") }

func (l panicking) Error(string, error, watermill.LogFields)         { l.fail() }
func (l panicking) Info(string, watermill.LogFields)                 { l.fail() }
func (l panicking) Debug(string, watermill.LogFields)                { l.fail() }
func (l panicking) Trace(string, watermill.LogFields)                { l.fail() }
func (l panicking) With(watermill.LogFields) watermill.LoggerAdapter { l.fail(); return l }

func TestALoggerThatPanicsEndsNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		network := failing(client, "")
		logger := panicking{new(atomic.Int32)}
		sub := testkit.Closes(t, newLoggingSubscriber(t, s, logger, through(client), func(c *redisdelay.SubscriberConfig) {
			c.Unmarshaler = panickingUnmarshaler{}
			c.Backoff = func(int) time.Duration { panic("no such attempt") }
		}))
		messages := subscribeTo(t, sub, "t")
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, logger)
		require.NoError(t, err)
		testkit.Closes(t, p)
		publish(t, p, "t", "panic", "x") // a dead letter
		require.True(t, receive(t, messages).Nack())
		require.Equal(t, []string{"x"}, consume(t, messages, 1))
		network.fail(errors.New("down"))
		publish(t, p, "t", "y")
		before := logger.calls.Load()
		eventually(t, func() bool { return logger.calls.Load() > before }, "an outage is logged")
		network.fail(nil)
		require.Equal(t, []string{"y"}, consume(t, messages, 1))
	})
}

// oddUnmarshaler fails as the payload says.
type oddUnmarshaler struct{ redisdelay.BinaryMarshaler }

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func (u oddUnmarshaler) Unmarshal(topic string, body []byte) (*message.Message, error) {
	msg, err := u.BinaryMarshaler.Unmarshal(topic, body)
	switch string(msg.Payload) {
	case "typed nil":
		return nil, (*nilError)(nil)
	case "Goexit":
		runtime.Goexit()
	}
	return msg, err
}

func TestAnUnmarshalerThatFailsCostsItsMessageOnly(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		for text, reason := range map[string]string{
			"typed nil": "unmarshal: Error or Is of an error of type *redisdelay_test.nilError panicked: " +
				"runtime error: invalid memory address or nil pointer dereference",
			"Goexit": "unmarshal: the Unmarshaler called runtime.Goexit",
		} {
			sub := testkit.Closes(t, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.Unmarshaler = oddUnmarshaler{} }))
			messages := subscribeTo(t, sub, text)
			publish(t, newPublisher(t, s), text, text, "x", text, "y")
			require.Equal(t, []string{"x", "y"}, consume(t, messages, 2))
			eventually(t, func() bool { return stateOf(t, s, text) == state{Bodies: 2, Dead: 2} }, "the others are dead")
			page, err := adminOf(t, s).List(ctx, text, admin.Query{State: admin.Dead, Limit: 1})
			require.NoError(t, err)
			require.Equal(t, reason, page.Messages[0].Places[0].Reason)
		}
	})
}

// oddMarshaler fails for a payload.
type oddMarshaler struct {
	redisdelay.BinaryMarshaler
	fail func() error
}

func (m oddMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	if string(msg.Payload) == "odd" {
		if err := m.fail(); err != nil {
			return nil, err
		}
	}
	return m.BinaryMarshaler.Marshal(topic, msg)
}

func TestAMarshalerThatFailsEndsItsCallOnly(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		for want, fail := range map[string]func() error{
			"marshal: the Marshaler panicked: odd":                                                 func() error { panic("odd") },
			"marshal: Error or Is of an error of type *redisdelay_test.nilError panicked: runtime": func() error { return (*nilError)(nil) },
			`the Marshaler called runtime.Goexit`:                                                  func() error { runtime.Goexit(); return nil },
		} {
			p := testkit.Closes(t, newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Marshaler = oddMarshaler{fail: fail} }))
			err := p.Publish("t", text("before"), text("odd"))
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, `publish to topic "t": `)
			require.NoError(t, p.Publish("t", text("x")))
		}
		require.EqualValues(t, 3, stateOf(t, s, "t").Bodies)
	})
}

func TestABackoffThatFailsIsReplacedByTheDefault(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		for name, fail := range map[string]func(){"panic": func() { panic("no such attempt") }, "Goexit": runtime.Goexit} {
			sub := testkit.Closes(t, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.Backoff = func(int) time.Duration { fail(); return 0 }
			}))
			messages := subscribeTo(t, sub, name)
			publish(t, newPublisher(t, s), name, "x")
			require.True(t, receive(t, messages).Nack())
			require.Equal(t, []string{"x"}, consume(t, messages, 1))
		}
	})
}

// Each call that a subscription, its scheduler and its mailbox make panics for a while.
func TestAHookThatPanicsEndsNoSubscription(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		var armed atomic.Bool
		var panics atomic.Int32
		client.AddHook(redistest.BeforeEach(func(redis.Cmder) error {
			if armed.Load() {
				panics.Add(1)
				panic("a fault of the hook")
			}
			return nil
		}))
		sub := testkit.Closes(t, newSubscriber(t, s, through(client), inFlight(3)))
		messages := subscribeTo(t, sub, "t")
		p := newPublisher(t, s)
		publish(t, p, "t", "acked", "nacked")
		acked, nacked := receive(t, messages), receive(t, messages)
		armed.Store(true)
		acked.Ack()
		nacked.Nack()
		require.NoError(t, p.Publish("t", delayed("delayed", 10*time.Millisecond), text("at once")))
		eventually(t, func() bool { return panics.Load() >= 8 }, "calls panic")
		_, err := sub.Subscribe(ctx, "another")
		require.ErrorContains(t, err, "a call to Redis panicked: a fault of the hook")
		armed.Store(false)
		require.ElementsMatch(t, []string{"nacked", "delayed", "at once"}, consume(t, messages, 3))
	})
}

// A handler's error may be a nil pointer.
func TestKeepErrorOfAnErrorThatPanics(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "t")
		publish(t, newPublisher(t, s), "t", "x")
		msg := receive(t, messages)
		_, err := redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) { return nil, (*nilError)(nil) })(msg)
		require.Equal(t, (*nilError)(nil), err)
		require.True(t, redisdelay.DeadOnNack(msg, (*nilError)(nil)))
		require.True(t, msg.Nack())
		eventually(t, func() bool { return stateOf(t, s, "t") == state{Bodies: 1, Dead: 1} }, "it is dead")
		page, err := adminOf(t, s).List(ctx, "t", admin.Query{State: admin.Dead, Limit: 1})
		require.NoError(t, err)
		require.Contains(t, page.Messages[0].Places[0].Reason, "an error of type *redisdelay_test.nilError panicked")
	})
}
