package brokers

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const (
	topic    = "orders"
	messages = 5000
	longest  = 12 * time.Second // of the delays

	// The broker is restarted, and the relay killed, when so many messages have come.
	restartAfter, killAfter = messages / 4, messages / 2

	// patience is how long the test waits for what has to happen.
	patience = 150 * time.Second

	batchMessages, concurrency = 20, 2

	// Messages that a killed process had claimed may come twice, as docs/relay.md says.
	perKill = batchMessages*(concurrency+1) + 768

	// A restart of the broker fails the calls of Publish that are under way, of which it may have
	// taken all. What it had handed to its consumer it may deliver again.
	perRestart = batchMessages*concurrency + inConsumersHands

	inConsumersHands = 100 // at most, of the brokers as they are set up here
)

// relayTo configures the relay of the tests.
func relayTo(client redis.UniversalClient, destination message.Publisher) relay.Config {
	return relay.Config{
		Subscriber: redisdelay.SubscriberConfig{
			Client:         client,
			TakeoverWindow: -1,
			LeaseDuration:  2 * time.Second, // to have what a killed process held soon
			Backoff:        redisdelay.ExponentialBackoff(100*time.Millisecond, time.Second),
		},
		Topics:        []string{topic},
		Destination:   destination,
		BatchMessages: batchMessages,
		Concurrency:   concurrency,
	}
}

func TestEverythingArrivesOverARestartAndAKill(t *testing.T) {
	for name, b := range brokers {
		if b.start == nil || b.once {
			continue // see TestGochannelInAProcessThatIsKilled, TestKillBetweenPublishAndAck
		}
		t.Run(name, func(t *testing.T) {
			store, running := redistest.Start(t), b.start(t)
			subscriber, err := b.newSubscriber(running.addr())
			require.NoError(t, err)
			t.Cleanup(func() { closeUnlessStuck(t, subscriber) })
			consumed, err := subscriber.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			direct, err := b.newPublisher(running.addr())
			require.NoError(t, err)

			register(t, store)
			got := newReceipts()
			go got.ackAll(consumed)
			first := startChild(t, "relay", name, store.Addr(), running.addr(), nil)
			publisher := newPublisher(t, store, direct)
			sent := publishAll(t, publisher, messages)
			require.NoError(t, publisher.Close())

			got.await(t, restartAfter)
			running.restart(t)
			got.awaitUnlessEnded(t, killAfter, first)
			first.kill()
			second := startChild(t, "relay", name, store.Addr(), running.addr(), nil)
			got.await(t, messages)

			awaitDrained(t, store)
			second.stop()
			// Messages that the broker still has come before this one.
			direct, err = b.newPublisher(running.addr())
			require.NoError(t, err)
			require.NoError(t, direct.Publish(topic, message.NewMessage("marker", nil)))
			got.await(t, messages+1)
			require.NoError(t, direct.Close())
			check(t, sent, got, perKill+perRestart)
			queuetest.CheckDrained(t, store.Client(t), redisdelay.DefaultKeyPrefix, queuetest.Live()) // killed ones left their last claim
		})
	}
}

// The broker is in the process that is killed, so that is its restart too.
func TestGochannelInAProcessThatIsKilled(t *testing.T) {
	store := redistest.Start(t)
	register(t, store)
	got := newReceipts()
	first := startChild(t, "gochannel", "gochannel", store.Addr(), "", got)
	// Nobody is there to publish to directly.
	sent := publishAll(t, newPublisher(t, store, nobody{}), messages)
	got.await(t, restartAfter)
	first.kill()
	second := startChild(t, "gochannel", "gochannel", store.Addr(), "", got)
	got.await(t, killAfter)
	second.kill()
	third := startChild(t, "gochannel", "gochannel", store.Addr(), "", got)
	got.await(t, messages-len(sent.direct))
	awaitDrained(t, store)
	third.stop()
	for _, uuid := range sent.direct {
		delete(sent.orders, uuid)
	}
	check(t, sent, got, 2*perKill)
	queuetest.CheckDrained(t, store.Client(t), redisdelay.DefaultKeyPrefix, queuetest.Live()) // killed ones left their last claim
}

// nobody takes what is not delayed, and loses it.
type nobody struct{}

func (nobody) Publish(string, ...*message.Message) error { return nil }
func (nobody) Close() error                              { return nil }

// closeUnlessStuck closes a subscriber whose connection was lost and made again. That of
// watermill-amqp now and then does not end.
func closeUnlessStuck(t *testing.T, subscriber message.Subscriber) {
	closed := make(chan error, 1)
	go func() { closed <- subscriber.Close() }()
	select {
	case err := <-closed:
		assert.NoError(t, err)
	case <-time.After(patience / 4):
		t.Log("Close of the subscriber does not return")
	}
}

// register has the relay's group there before anything is due.
func register(t *testing.T, store *redistest.Instance) {
	t.Helper()
	subscriber := testkit.NewSubscriber(t, on(t, store), func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.MaxDeliveries = relay.DefaultConsumerGroup, -1
	})
	require.NoError(t, subscriber.SubscribeInitialize(topic))
	require.NoError(t, subscriber.Close())
}

func newPublisher(t *testing.T, store *redistest.Instance, direct message.Publisher) *relay.Publisher {
	t.Helper()
	publisher, err := relay.NewPublisher(relay.PublisherConfig{Destination: direct, Delayed: testkit.NewPublisher(t, on(t, store))})
	require.NoError(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	return publisher
}

// order is a message as it is to arrive.
type order struct {
	payload  string
	metadata message.Metadata
	due      time.Time // not before
}

type sent struct {
	orders map[string]order // by UUID
	direct []string         // UUIDs of those without delay
}

// publishAll publishes messages with delays of all kinds, and without, a hundred in a call.
func publishAll(t *testing.T, publisher message.Publisher, messages int) sent {
	t.Helper()
	s := sent{orders: map[string]order{}}
	random := rand.New(rand.NewPCG(1, 2))
	for range messages / 100 {
		var call []*message.Message
		for range 100 {
			n := len(s.orders)
			payload := make([]byte, random.IntN(500))
			for i := range payload {
				payload[i] = byte(random.Uint32())
			}
			msg := message.NewMessage(fmt.Sprintf("order-%d", n), payload)
			msg.Metadata = message.Metadata{"n": strconv.Itoa(n), "Kind": "gift, wrapped; 50%", "partition_key": "a/b:c"}
			o := order{payload: string(payload), metadata: maps.Clone(msg.Metadata), due: time.Now()}
			d := time.Duration(random.Int64N(int64(longest)))
			switch n % 10 {
			case 0:
				s.direct = append(s.direct, msg.UUID)
				d = 0
			case 1, 2:
				redisdelay.DelayUntil(msg, o.due.Add(d))
			case 3, 4:
				delay.Message(msg, delay.For(d))
			case 5, 6:
				msg.SetContext(delay.WithContext(context.Background(), delay.For(d)))
			default:
				redisdelay.DelayFor(msg, d)
			}
			o.due = o.due.Add(d)
			s.orders[msg.UUID] = o
			call = append(call, msg)
		}
		require.NoError(t, publisher.Publish(topic, call...))
	}
	return s
}

// receipt is one arrival of a message.
type receipt struct {
	UUID     string
	Payload  string // base64, as the child says it
	Metadata message.Metadata
	At       time.Time
}

func newReceipt(msg *message.Message) receipt {
	return receipt{msg.UUID, encoded(string(msg.Payload)), maps.Clone(msg.Metadata), time.Now()}
}

func encoded(payload string) string { return base64.StdEncoding.EncodeToString([]byte(payload)) }

// receipts are all arrivals.
type receipts struct {
	mu   sync.Mutex
	all  []receipt
	seen map[string]bool // UUIDs
	news chan struct{}
}

func newReceipts() *receipts {
	return &receipts{seen: map[string]bool{}, news: make(chan struct{}, 1)}
}

func (r *receipts) add(got receipt) {
	r.mu.Lock()
	r.all = append(r.all, got)
	r.seen[got.UUID] = true
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *receipts) ackAll(messages <-chan *message.Message) {
	for msg := range messages {
		r.add(newReceipt(msg))
		msg.Ack()
	}
}

// await waits until n different messages have come.
func (r *receipts) await(t *testing.T, n int) {
	t.Helper()
	r.awaitUnlessEnded(t, n, nil)
}

// awaitUnlessEnded is await, or the end of the child.
func (r *receipts) awaitUnlessEnded(t *testing.T, n int, c *child) {
	t.Helper()
	var ended chan struct{}
	if c != nil {
		ended = c.ended
	}
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		came := len(r.seen)
		r.mu.Unlock()
		if came >= n {
			return
		}
		select {
		case <-r.news:
		case <-ended:
			t.Logf("the process that relays ended by itself when %d messages had come", came)
			return
		case <-timeout:
			require.FailNow(t, "messages do not come", "%d of %d came", came, n)
		}
	}
}

// check checks that what came is what was sent, and that no more came twice than is allowed.
func check(t *testing.T, sent sent, got *receipts, allowed int) {
	t.Helper()
	got.mu.Lock()
	defer got.mu.Unlock()
	ids, times := map[string]string{}, map[string]int{} // by UUID
	var latest time.Duration
	for _, r := range got.all {
		if r.UUID == "marker" {
			continue
		}
		want, known := sent.orders[r.UUID]
		require.True(t, known, "%q was never sent", r.UUID)
		times[r.UUID]++
		require.False(t, r.At.Before(want.due), "%s came %v early", r.UUID, want.due.Sub(r.At))
		latest = max(latest, r.At.Sub(want.due))
		id, relayed := r.Metadata[relay.IDKey]
		if times[r.UUID] > 1 {
			require.Equal(t, ids[r.UUID], id, "%s came again as another", r.UUID)
		}
		ids[r.UUID] = id
		if relayed {
			want.metadata = maps.Clone(want.metadata)
			want.metadata[relay.IDKey] = id
		}
		delete(r.Metadata, redeliveredByRabbitmq)
		require.Equal(t, want.metadata, r.Metadata)
		require.Equal(t, encoded(want.payload), r.Payload)
	}
	different, doubled, twice := map[string]bool{}, 0, 0
	for uuid, n := range times {
		if id := ids[uuid]; id != "" {
			require.False(t, different[id], "two messages have one ID")
			different[id] = true
		}
		doubled += n - 1
		if n > 1 {
			twice++
		}
	}
	require.Len(t, times, len(sent.orders), "some are lost")
	require.Len(t, different, messages-len(sent.direct), "what is relayed has an ID")
	t.Logf("%d messages came; %d of them more than once, %d times in all, at most %d may; the latest was %v late",
		len(times), twice, doubled, allowed, latest.Round(time.Millisecond))
	require.LessOrEqual(t, doubled, allowed)
}

// awaitDrained waits until everything is settled in Redis.
func awaitDrained(t *testing.T, store *redistest.Instance) {
	t.Helper()
	testkit.AwaitEmpty(t, on(t, store), topic)
}

// on is a server with the default prefix.
func on(t *testing.T, server *redistest.Instance) redistest.Server {
	return redistest.On(t, server.Client(t), redisdelay.DefaultKeyPrefix)
}
