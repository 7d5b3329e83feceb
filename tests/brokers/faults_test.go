package brokers

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/examples/delayed-kafka/kafkaqueue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// refusal is a message that a broker never takes.
type refusal struct {
	make func(*message.Message)
	why  string // part of the error, and so of the dead letter's reason
}

// faulty is a server whose faults a test can bring about, each until the returned function is
// called.
type faulty interface {
	server
	stall(t *testing.T) (resume func())    // it answers no publisher
	throttle(t *testing.T) (relent func()) // it refuses all publishers for the moment
}

// onFaulty runs a test on each broker that can be faulty.
func onFaulty(t *testing.T, test func(t *testing.T, b broker, s faulty, r *relayed)) {
	for name, b := range brokers {
		if b.permanent == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := b.start(t).(faulty)
			test(t, b, s, newRelayed(t, b, s))
		})
	}
}

// relayed is a relay in this process to a broker with a consumer.
type relayed struct {
	t     *testing.T
	store *redistest.Instance
	to    *redisdelay.Publisher
	got   *receipts
}

// lease is that of the relay.
const lease = 500 * time.Millisecond

func newRelayed(t *testing.T, b broker, s server, change ...func(*relay.Config)) *relayed {
	t.Helper()
	r := &relayed{t: t, store: redistest.Start(t), got: newReceipts()}
	r.to = testkit.Closes(t, testkit.NewPublisher(t, on(t, r.store)))
	subscriber, err := b.newSubscriber(s.addr())
	require.NoError(t, err)
	consumed, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	go r.got.ackAll(consumed)
	t.Cleanup(func() { closeUnlessStuck(t, subscriber) })
	r.run(b, s, change...)
	return r
}

// run starts a relay, which stop stops. It is stopped when the test ends, too.
func (r *relayed) run(b broker, s server, change ...func(*relay.Config)) (stop func()) {
	r.t.Helper()
	destination, err := b.newPublisher(s.addr())
	require.NoError(r.t, err)
	config := relayTo(r.store.Client(r.t), destination)
	config.Subscriber.LeaseDuration = lease
	config.Permanent = b.permanent
	config.DestinationTopic = func(topic string, msg *message.Message) string {
		if other := msg.Metadata.Get("to"); other != "" {
			return other
		}
		return topic
	}
	for _, c := range change {
		c(&config)
	}
	relaying, err := relay.New(config, nil)
	require.NoError(r.t, err)
	ctx, end := context.WithCancel(context.Background())
	ended := testkit.Begin(func() error { return relaying.Run(ctx) })
	stop = sync.OnceFunc(func() {
		end()
		assert.NoError(r.t, testkit.Wait(r.t, ended, "the end of the relay"))
		assert.NoError(r.t, destination.Close())
	})
	r.t.Cleanup(stop)
	return stop
}

// publish publishes numbered messages that are due at once, with one more in their middle.
func (r *relayed) publish(n int, more ...*message.Message) {
	r.t.Helper()
	var all []*message.Message
	for i := range n {
		if i == n/2 {
			all = append(all, more...)
		}
		msg := message.NewMessage("order-"+strconv.Itoa(i), fmt.Appendf(nil, `{"n":%d}`, i))
		msg.Metadata.Set(kafkaqueue.KeyOf, strconv.Itoa(i%10))
		all = append(all, msg)
	}
	require.NoError(r.t, r.to.Publish(topic, all...))
}

func (r *relayed) state() testkit.State {
	return testkit.StateOf(r.t, on(r.t, r.store), topic, relay.DefaultConsumerGroup)
}

func (r *relayed) eventually(condition func() bool, what string) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, 20*time.Millisecond, what)
}

// reasons returns the reasons of the messages that are in a state.
func (r *relayed) reasons(state admin.State) (reasons []string) {
	r.t.Helper()
	operator, err := admin.New(admin.Config{Client: r.store.Client(r.t)})
	require.NoError(r.t, err)
	page, err := operator.List(r.t.Context(), topic, admin.Query{State: state, Group: relay.DefaultConsumerGroup})
	require.NoError(r.t, err)
	for _, msg := range page.Messages {
		reasons = append(reasons, msg.Places[0].Reason)
	}
	return reasons
}

// times returns how many messages came, and how many times in all.
func (r *receipts) times() (different, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen), len(r.all)
}

func TestRefusedMessageIsDeadAndStopsNoOther(t *testing.T) {
	for name, b := range brokers {
		for why, refusal := range b.refused {
			t.Run(name+"/"+why, func(t *testing.T) {
				t.Parallel()
				r := newRelayed(t, b, b.start(t))
				bad := message.NewMessage("bad", []byte(`{}`))
				refusal.make(bad)
				r.publish(50, bad)
				r.got.await(t, 50)
				r.eventually(func() bool { return r.state() == testkit.State{Bodies: 1, Dead: 1} }, "one dead letter, and nothing else")
				for _, reason := range r.reasons(admin.Dead) {
					require.Contains(t, reason, refusal.why)
					require.Contains(t, reason, "refused by the destination")
				}
			})
		}
	}
}

func TestMessageForAMissingTopicWaitsAndStopsNoOther(t *testing.T) {
	onFaulty(t, func(t *testing.T, b broker, s faulty, r *relayed) {
		early := message.NewMessage("early", []byte(`{}`))
		early.Metadata.Set("to", "elsewhere")
		r.publish(50, early)
		r.got.await(t, 50)
		r.eventually(func() bool { return r.state() == testkit.State{Bodies: 1, Retrying: 1} }, "it waits")
		require.Contains(t, r.reasons(admin.Retrying)[0], "elsewhere")
		b.addTopic(t, s.addr(), "elsewhere")
		testkit.AwaitEmpty(t, on(t, r.store), topic)
		_, all := r.got.times()
		require.Equal(t, 50, all)
	})
}

// A destination takes longer than a lease to answer. The relay keeps its leases, so nothing is
// published twice.
func TestSlowDestinationGetsEachMessageOnce(t *testing.T) {
	onFaulty(t, func(t *testing.T, b broker, s faulty, r *relayed) {
		resume := s.stall(t)
		r.publish(50)
		r.eventually(func() bool { return r.state().InHand > 0 }, "the relay has claimed messages")
		time.Sleep(4 * lease) // is the point: nothing happens when a lease is over
		different, _ := r.got.times()
		require.Zero(t, different)
		resume()
		r.got.await(t, 50)
		testkit.AwaitEmpty(t, on(t, r.store), topic)
		_, all := r.got.times()
		require.Equal(t, 50, all)
	})
}

func TestDestinationThatRefusesForAWhileGetsEverything(t *testing.T) {
	onFaulty(t, func(t *testing.T, b broker, s faulty, r *relayed) {
		relent := s.throttle(t)
		r.publish(50)
		r.eventually(func() bool { return r.state().Retrying > 0 }, "messages wait for their retries")
		require.NotEmpty(t, r.reasons(admin.Retrying)[0])
		relent()
		r.got.await(t, 50)
		testkit.AwaitEmpty(t, on(t, r.store), topic)
	})
}

// The relay is killed when the destination has taken a message and Redis does not know it. The
// message is published again with the same ID, by which a destination can drop it.
func TestKillBetweenPublishAndAck(t *testing.T) {
	for name, b := range brokers {
		if b.start == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := b.start(t)
			store := redistest.Start(t)
			register(t, store)
			subscriber, err := b.newSubscriber(s.addr())
			require.NoError(t, err)
			t.Cleanup(func() { closeUnlessStuck(t, subscriber) })
			consumed, err := subscriber.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			got := newReceipts()
			go got.ackAll(consumed)
			delayed := testkit.NewPublisher(t, on(t, store))
			require.NoError(t, delayed.Publish(topic, message.NewMessage("order", []byte(`{}`))))

			killed := startChild(t, "relay-killed", name, store.Addr(), s.addr(), nil)
			select {
			case <-killed.ended:
			case <-time.After(patience):
				require.FailNow(t, "the relay does not end")
			}
			got.await(t, 1)
			require.EqualValues(t, 1, testkit.StateOf(t, on(t, store), topic, relay.DefaultConsumerGroup).Bodies, "Redis still has it")
			second := startChild(t, "relay", name, store.Addr(), s.addr(), nil)
			testkit.AwaitEmpty(t, on(t, store), topic)
			require.NoError(t, delayed.Publish(topic, message.NewMessage("marker", []byte(`{}`))))
			got.await(t, 2)
			second.stop()

			var ids []string
			for _, r := range got.all {
				if r.UUID == "order" {
					ids = append(ids, r.Metadata[relay.IDKey])
				}
			}
			require.NotEmpty(t, ids[0])
			if b.once {
				require.Len(t, ids, 1)
			} else {
				require.Equal(t, []string{ids[0], ids[0]}, ids)
			}
		})
	}
}
