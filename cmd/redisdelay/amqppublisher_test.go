package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Who comes while the broker does not answer waits for the attempt to connect that is under way, and no longer than it
// has time.
func TestABrokerIsConnectedToOnceAtATime(t *testing.T) {
	t.Parallel()
	dialed, answered := make(chan struct{}, 10), make(chan struct{})
	p := &amqpPublisher{batch: 1, logger: quiet(), dial: func() (*amqp091.Connection, error) {
		dialed <- struct{}{}
		<-answered
		return nil, errors.New("no answer")
	}}
	publishing := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		msg := message1()
		msg.SetContext(ctx)
		go func() { ended <- p.Publish(topic, msg) }()
		return ended
	}
	ends := func(ended <-chan error) error {
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			require.FailNow(t, "it does not end")
			return nil
		}
	}
	first := publishing(t.Context())
	<-dialed
	hasNoTime, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ends(publishing(hasNoTime)), context.Canceled)
	closing := make(chan error, 1)
	go func() { closing <- p.Close() }()
	require.NoError(t, ends(closing))
	close(answered)
	require.ErrorContains(t, ends(first), "no answer")
	require.ErrorIs(t, ends(publishing(t.Context())), errClosed)
	require.Empty(t, dialed, "nobody else did")
}
