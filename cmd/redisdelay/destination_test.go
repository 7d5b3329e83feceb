package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsclient "github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// A destination that never answers does not prevent the program from ending, with its messages
// given back.
func TestSilentDestinationDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	for name, mute := range map[string]func(*testing.T) (args []string){
		"amqp": func(t *testing.T) []string {
			address, _ := silent(t)
			return []string{"--amqp", "amqp://" + address}
		},
		"http": func(t *testing.T) []string {
			address, _ := silent(t)
			return []string{"--http", "http://" + address, "--http-allow-private", "127.0.0.1"}
		},
		"kafka": func(t *testing.T) []string {
			address, _ := silent(t)
			return []string{"--kafka", address}
		},
		"nats": func(t *testing.T) []string {
			broker := startNATS(t)
			hears, err := natsclient.Connect(broker.url())
			require.NoError(t, err)
			t.Cleanup(hears.Close)
			_, err = hears.Subscribe(">", func(*natsclient.Msg) {}) // as a stream that does not confirm
			require.NoError(t, err)
			require.NoError(t, hears.Flush())
			return []string{"--nats", broker.url()}
		},
		"redisstream": func(t *testing.T) []string {
			to := startStreams(t)
			to.Pause()
			t.Cleanup(to.Resume)
			return []string{"--redisstream", to.Addr()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := redistest.Start(t)
			client := store.Client(t)
			topics := strings.Split("a b c d e f g h", " ")
			p := start(t, nil, append([]string{"relay", "--redis", store.Addr(), "--from", strings.Join(topics, ","), "--ordered",
				"--stop-timeout", "1s", "--to", name}, mute(t)...)...)
			p.await("msg=Relaying")
			for _, name := range topics {
				publishOrders(t, client, name, 2, time.Millisecond)
			}
			require.Eventually(t, func() bool { return inHandOf(t, client, topics) >= len(topics) }, patience, 5*time.Millisecond)

			began := time.Now()
			p.signal()
			require.Zero(t, p.wait())
			require.Less(t, time.Since(began), 4*time.Second, "--stop-timeout, and what is left behind")
			require.Zero(t, inHandOf(t, client, topics), "nothing has to wait for its lease to run out")
		})
	}
}

// inHandOf returns how many messages of the topics the relay holds.
func inHandOf(t *testing.T, client redis.UniversalClient, topics []string) (n int) {
	for _, name := range topics {
		n += int(client.ZCard(t.Context(), redisdelay.DefaultKeyPrefix+":{"+name+"}:unack:"+relay.DefaultConsumerGroup).Val())
	}
	return n
}

// publisher is a Publisher made of two functions.
type publisher struct{ publish, close func() error }

func (p publisher) Publish(string, ...*message.Message) error { return p.publish() }
func (p publisher) Close() error                              { return p.close() }

func TestPublishWaitsWhileAnyMessagesContextLasts(t *testing.T) {
	t.Parallel()
	let, closed := make(chan struct{}), 0
	to := &destination{Publisher: publisher{
		func() error { <-let; return errors.New("down") },
		func() error { closed++; return nil },
	}}
	messages := []*message.Message{message1(), message1()}
	ends := make([]context.CancelFunc, len(messages))
	for i, msg := range messages {
		var ctx context.Context
		ctx, ends[i] = context.WithCancel(t.Context())
		msg.SetContext(ctx)
	}
	ends[0]() // this one is another's
	ended := make(chan error)
	go func() { ended <- to.Publish(topic, messages...) }()
	let <- struct{}{}
	require.ErrorContains(t, <-ended, "down")

	go func() { ended <- to.Publish(topic, messages...) }()
	ends[1]()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, to.Close())
	require.Zero(t, closed, "what is left behind uses it")
	let <- struct{}{}
	require.Eventually(t, func() bool { return to.Close() == nil && closed == 1 }, patience, time.Millisecond)
}

func TestPanicOfADestinationDoesNotEndTheProgram(t *testing.T) {
	t.Parallel()
	to := &destination{Publisher: publisher{publish: func() error { panic("odd") }}}
	require.ErrorContains(t, to.Publish(topic, message1()), "odd")
}
