package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsclient "github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const topic = "orders"

// order is a message as expected at its arrival.
type order struct {
	payload string
	due     time.Time // not before
}

// publishOrders publishes n messages with delays up to longest.
func publishOrders(t *testing.T, client redis.UniversalClient, topic string, n int, longest time.Duration) map[string]order {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	defer publisher.Close()
	orders := map[string]order{}
	var all []*message.Message
	for i := range n {
		o := order{payload: fmt.Sprint("payload of ", topic, i), due: time.Now()}
		msg := message.NewMessage(fmt.Sprint(topic, "-", i), []byte(o.payload))
		msg.Metadata = message.Metadata{"Kind": "gift, wrapped; 50%", "n": fmt.Sprint(i)}
		delay := rand.N(longest)
		redisdelay.DelayFor(msg, delay)
		o.due = o.due.Add(delay)
		orders[msg.UUID] = o
		all = append(all, msg)
	}
	require.NoError(t, publisher.Publish(topic, all...))
	return orders
}

// consumer receives messages from the broker.
type consumer struct {
	mu   sync.Mutex
	came []arrival
	news chan struct{}
}

type arrival struct {
	uuid, payload string
	metadata      message.Metadata
	at            time.Time
}

// consume acks all messages of a broker's topic, until the test ends.
func consume(t *testing.T, from message.Subscriber, topic string) *consumer {
	t.Helper()
	messages, err := from.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	c := &consumer{news: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for msg := range messages {
			c.mu.Lock()
			c.came = append(c.came, arrival{msg.UUID, string(msg.Payload), maps.Clone(msg.Metadata), time.Now()})
			c.mu.Unlock()
			msg.Ack()
			select {
			case c.news <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		_ = from.Close()
		<-ended
	})
	return c
}

// await waits for n messages.
func (c *consumer) await(t *testing.T, n int) []arrival {
	t.Helper()
	for timeout := time.After(patience); ; {
		c.mu.Lock()
		came := c.came
		c.mu.Unlock()
		if len(came) >= n {
			return came
		}
		select {
		case <-c.news:
		case <-timeout:
			require.FailNow(t, "messages do not come", "%d of %d came", len(came), n)
		}
	}
}

// requireAll checks that all arrived unchanged, once, and none early.
func requireAll(t *testing.T, orders map[string]order, came []arrival) {
	t.Helper()
	seen, ids := map[string]bool{}, map[string]bool{}
	for _, a := range came {
		want, known := orders[a.uuid]
		require.True(t, known, "%s was never sent", a.uuid)
		require.False(t, seen[a.uuid], "%s came twice", a.uuid)
		require.False(t, a.at.Before(want.due), "%s is %v early", a.uuid, want.due.Sub(a.at))
		require.Equal(t, want.payload, a.payload)
		require.Equal(t, "gift, wrapped; 50%", a.metadata["Kind"])
		require.Len(t, a.metadata[relay.IDKey], 26)
		require.Len(t, a.metadata, 3, "%v", a.metadata)
		seen[a.uuid], ids[a.metadata[relay.IDKey]] = true, true
	}
	require.Len(t, seen, len(orders), "some are lost")
	require.Len(t, ids, len(orders))
}

// startRelay starts the program with the store, and waits until its group exists.
func startRelay(t *testing.T, start func(*testing.T, []string, ...string) *tool, store *redistest.Instance, environment []string, args ...string) *tool {
	t.Helper()
	p := start(t, environment, append([]string{"relay", "--redis", store.Addr(), "--from", topic}, args...)...)
	p.await("Relaying")
	client := store.Client(t)
	require.Eventually(t, func() bool {
		there, err := client.HExists(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:groups", relay.DefaultConsumerGroup).Result()
		return err == nil && there
	}, patience, 5*time.Millisecond)
	return p
}

// relaysOverAStop stops one relay in the middle while another continues. All messages arrive once,
// none early.
func relaysOverAStop(t *testing.T, start func(*testing.T, []string, ...string) *tool, consumed *consumer, environment []string, args ...string) {
	t.Helper()
	const messages = 2000
	store := redistest.Start(t)
	client := store.Client(t)
	first := startRelay(t, start, store, environment, args...)
	orders := publishOrders(t, client, topic, messages, 3*time.Second)
	consumed.await(t, messages/3)
	first.stop()
	require.Zero(t, client.ZCard(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:unack:"+relay.DefaultConsumerGroup).Val(),
		"nothing is left in hand")
	second := startRelay(t, start, store, environment, args...)
	came := consumed.await(t, messages)
	second.stop()
	queuetest.CheckDrained(t, client, redisdelay.DefaultKeyPrefix, queuetest.Live())
	requireAll(t, orders, came)
}

// Watermill's Publishers send the UUID in this metadata key. They refuse such metadata, or lose it
// or the UUID.
func TestMessageWithTheUUIDsMetadataKeyIsDead(t *testing.T) {
	t.Parallel()
	msg := message1()
	msg.Metadata.Set("_watermill_message_uuid", "another")
	refused := func(err error, permanent func(error) bool) {
		t.Helper()
		require.ErrorContains(t, err, "_watermill_message_uuid")
		require.True(t, permanent(err), err)
	}
	broker := startNATS(t)
	broker.stream(t, natsclient.StreamConfig{Name: topic})
	for kind, args := range map[string][]string{
		"redisstream": {"--redis", redistest.Start(t).Addr()},
		"nats":        {"--nats", broker.url()},
	} {
		to, err := reading(t, nil, args...).kinds[kind].open(1, quiet())
		require.NoError(t, err)
		defer to.Close()
		require.Eventually(t, func() bool { return to.check(t.Context()) == nil }, patience, time.Millisecond)
		refused(to.Publish(topic, msg), to.permanent)
		require.NoError(t, to.Publish(topic, message1()))
	}
	_, err := new(amqpChannel).marshal(msg)
	refused(err, refusedByAMQP)
}

// A replace directive would break `go install` of a released version, which has no directory beside
// it.
func TestModuleCanBeInstalledByItsVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.NotRegexp(t, `(?m)^\s*(replace|exclude)\b`, string(text), "go.work is the place for it")
}

// quiet is a logger that logs nothing.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A command says that it stops before it returns.
func TestTheEndOfAContextIsOverWhenStopReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		goOn, stopped, said := make(chan struct{}), false, false
		stop := atEnd(ctx, func() {
			<-goOn
			said = true
		})
		cancel()
		go func() {
			stop()
			stopped = true
		}()
		synctest.Wait()
		require.False(t, stopped)
		close(goOn)
		synctest.Wait()
		require.True(t, stopped)
		require.True(t, said)

		ctx, cancel = context.WithCancel(t.Context())
		atEnd(ctx, func() { said = false })()
		cancel()
		synctest.Wait()
		require.True(t, said, "a command that ended by itself does not say that it stops")
	})
}
