package testkit

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// NewRouter returns a router that does not log.
func NewRouter(t TB) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: Soon}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

// Runner is a router, or a component of Watermill that has one.
type Runner interface {
	Run(context.Context) error
	Running() chan struct{}
	Close() error
}

// StartRouter runs a router until stop is called or the test ends.
func StartRouter(t TB, router Runner) (stop func()) {
	t.Helper()
	ended := Begin(func() error { return router.Run(ctx) })
	select {
	case <-router.Running():
	case err := <-ended:
		require.FailNow(t, "the router does not run", "%v", err)
	case <-time.After(Soon):
		require.FailNow(t, "the router does not run")
	}
	stop = sync.OnceFunc(func() {
		assert.NoError(t, router.Close())
		assert.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// Delaying is a Publisher that delays every message.
type Delaying struct {
	message.Publisher
	Delay time.Duration
}

// Publish implements message.Publisher.
func (p Delaying) Publish(topic string, messages ...*message.Message) error {
	if p.Delay > 0 {
		for _, msg := range messages {
			redisdelay.DelayFor(msg, p.Delay)
		}
	}
	return p.Publisher.Publish(topic, messages...)
}
