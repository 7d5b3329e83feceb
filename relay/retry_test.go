package relay_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// A handler of another queue's consumer fails again and again. Its message comes back to that queue
// each time, after waits that grow.
func TestWaitsOfAnotherQueuesRetriesGrow(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		run(t, newRelay(t, s, to))
		retry, err := middleware.PoisonQueue(testkit.NewPublisher(t, s), topic)
		require.NoError(t, err)
		backoff := (&middleware.DelayOnError{InitialInterval: time.Millisecond, MaxInterval: time.Second, Multiplier: 3}).Middleware
		handle := retry(backoff(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("failed") }))

		msg := message.NewMessage("order", []byte("payload"))
		for i, want := range []string{"1ms", "3ms", "9ms"} {
			_, err := handle(msg)
			require.NoError(t, err)
			back := to.await(t, i+1)[i]
			require.Equal(t, "payload", back.payload)
			require.Equal(t, want, back.metadata[delay.DelayedForKey])
			require.NotContains(t, back.metadata, delay.DelayedUntilKey)
			msg = message.NewMessage(back.uuid, []byte(back.payload))
			msg.Metadata = back.metadata
		}
	})
}
