package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
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

// A broker that takes connections and says nothing keeps the program from its work, and not from its end.
func TestABrokerThatSaysNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	broker, _ := silent(t)
	topics := strings.Split("a b c d e f g h", " ")
	p := start(t, nil, "relay", "--redis", store.Addr(), "--from", strings.Join(topics, ","), "--stop-timeout", "1s",
		"--to", "amqp", "--amqp", "amqp://"+broker)
	p.await("msg=Relaying")
	for _, name := range topics {
		publishOrders(t, store.Client(t), name, 1, time.Millisecond)
	}
	client := store.Client(t)
	require.Eventually(t, func() bool { return inHandOf(t, client, topics) == len(topics) }, patience, 5*time.Millisecond)

	began := time.Now()
	p.signal()
	p.wait()
	require.Less(t, time.Since(began), 4*time.Second, "--stop-timeout, and what is left behind")
}

// inHandOf is how many messages of the topics the relay has taken.
func inHandOf(t *testing.T, client redis.UniversalClient, topics []string) (n int) {
	for _, name := range topics {
		n += int(client.ZCard(t.Context(), redisdelay.DefaultKeyPrefix+":{"+name+"}:unack:"+relay.DefaultConsumerGroup).Val())
	}
	return n
}
