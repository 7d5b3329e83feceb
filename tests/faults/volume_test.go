package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A volume is too much for a history: it is counted who came how often, and by how much too early.
type volume struct {
	mu     sync.Mutex
	came   map[string]int
	early  time.Duration
	latest time.Duration
}

// take acks what comes until the channel closes, and compares the clock of this machine, which is
// the server's.
func (v *volume) take(messages <-chan *message.Message) {
	for msg := range messages {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		late := time.Since(delivery.DueAt)
		v.mu.Lock()
		v.came[delivery.Topic+" "+msg.UUID]++
		v.early, v.latest = max(v.early, -late), max(v.latest, late)
		v.mu.Unlock()
		msg.Ack()
	}
}

func (v *volume) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.came)
}

func TestManyDueInOneMillisecond(t *testing.T) {
	t.Parallel()
	n := faulttest.Pick(20_000, 1_000_000)
	faulttest.Case(t, "as many messages due in the same millisecond: each comes once, none early, and the server answers others meanwhile")
	server := redistest.Start(t)
	client := server.Client(t)
	subscriber := newSubscriber(t, redisdelay.SubscriberConfig{Client: client, MaxInFlight: 256})
	require.NoError(t, subscriber.SubscribeInitialize("t"))
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	due := time.Now().Add(faulttest.Pick(5*time.Second, 2*time.Minute))
	for i := 0; i < n; i += 10_000 {
		var batch []*message.Message
		for j := range 10_000 {
			msg := message.NewMessage(strconv.Itoa(i+j), nil)
			redisdelay.DelayUntil(msg, due)
			batch = append(batch, msg)
		}
		require.NoError(t, publisher.Publish("t", batch...))
	}
	require.NoError(t, publisher.Close())
	require.True(t, time.Now().Before(due), "publishing took too long for what the test is about")

	v := &volume{came: map[string]int{}}
	var consumers sync.WaitGroup
	for range 2 {
		messages, err := subscriber.Subscribe(context.Background(), "t")
		require.NoError(t, err)
		consumers.Go(func() { v.take(messages) })
	}
	var slowest time.Duration
	pings := every(time.Millisecond, func() {
		began := time.Now()
		if client.Ping(context.Background()).Err() == nil {
			slowest = max(slowest, time.Since(began))
		}
	})
	faulttest.Eventually(t, func() bool { return v.count() == n }, 5*time.Minute, 10*time.Millisecond)
	pings()
	require.NoError(t, subscriber.Close())
	consumers.Wait()
	require.Zero(t, v.early)
	require.Equal(t, 1, slices.Max(slices.Collect(maps.Values(v.came))))
	queuetest.CheckDrained(t, client, redisdelay.DefaultKeyPrefix)
	faulttest.Report(t, fmt.Sprintf("%d messages, the last of them %v late, slowest PING meanwhile %v", n, v.latest.Round(time.Millisecond), slowest.Round(time.Millisecond)))
}

func TestManyTopics(t *testing.T) {
	t.Parallel()
	n := faulttest.Pick(200, 10_000)
	faulttest.Case(t, "as many topics in one process, whose connections are all killed while they wait: each message comes once, none early")
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 20})
	t.Cleanup(func() { _ = client.Close() })
	subscriber := newSubscriber(t, redisdelay.SubscriberConfig{Client: client})
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	v := &volume{came: map[string]int{}}
	var consumers sync.WaitGroup
	for i := range n {
		messages, err := subscriber.Subscribe(context.Background(), fmt.Sprint("t", i))
		require.NoError(t, err)
		consumers.Go(func() { v.take(messages) })
	}
	for i := range n {
		msg := message.NewMessage("m", nil)
		redisdelay.DelayFor(msg, faulttest.Pick(500*time.Millisecond, 5*time.Second))
		require.NoError(t, publisher.Publish(fmt.Sprint("t", i), msg))
	}
	onlooker := server.Client(t)
	for _, kind := range []string{"normal", "pubsub"} {
		require.NoError(t, onlooker.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Err())
	}
	faulttest.Eventually(t, func() bool { return v.count() == n }, 2*time.Minute, 10*time.Millisecond)
	clients, err := onlooker.ClientList(t.Context()).Result()
	require.NoError(t, err)
	connections := strings.Count(clients, "\n") - 1
	require.NoError(t, publisher.Close())
	require.NoError(t, subscriber.Close())
	consumers.Wait()
	require.Zero(t, v.early)
	require.Equal(t, 1, slices.Max(slices.Collect(maps.Values(v.came))))
	queuetest.CheckDrained(t, onlooker, redisdelay.DefaultKeyPrefix)
	faulttest.Report(t, fmt.Sprintf("%d topics, %d connections, at most %v late", n, connections, v.latest.Round(time.Millisecond)))
}
