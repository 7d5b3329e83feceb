package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// All callers wait for one attempt to connect, each until its context ends, the first caller too.
func TestConcurrentCallersShareOneAttemptToConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dialed, answered := 0, make(chan struct{})
		p := &amqpPublisher{batch: 1, logger: quiet(), dial: func() (*amqp091.Connection, error) {
			dialed++
			<-answered
			return nil, errors.New("no answer")
		}}
		publishing := func(ctx context.Context) <-chan error {
			ended := make(chan error, 1)
			msg := message1()
			msg.SetContext(ctx)
			go func() { ended <- p.Publish(topic, msg) }()
			synctest.Wait()
			return ended
		}
		hasTime, cancel := context.WithCancel(t.Context())
		first, second := publishing(hasTime), publishing(t.Context())
		cancel()
		synctest.Wait()
		require.Len(t, first, 1)
		require.ErrorIs(t, <-first, context.Canceled)
		require.ErrorIs(t, <-publishing(hasTime), context.Canceled)
		require.NoError(t, p.Close())
		close(answered)
		require.ErrorContains(t, <-second, "no answer")
		require.ErrorIs(t, <-publishing(t.Context()), errClosed)
		require.Equal(t, 1, dialed)
	})
}
