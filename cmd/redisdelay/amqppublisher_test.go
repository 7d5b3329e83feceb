package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// A broker's machine that takes connections, and says nothing, is waited for once at a time, and not by each call of
// Publish after the other: the program ends when it is told to.
func TestABrokerThatSaysNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	store := redistest.Start(t)
	topics := strings.Split("a b c d e f g h", " ")
	p := start(t, nil, "relay", "--redis", store.Addr(), "--from", strings.Join(topics, ","), "--stop-timeout", "1s",
		"--to", "amqp", "--amqp", "amqp://"+silent.Addr().String())
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
