package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A message that waited in an outbox comes when it would have come without: never before, and by
// Watermill's keys, which are cut to seconds, at most a second after; by delay_until to the
// millisecond. The outbox is a table of another database in life; here a forwarder that does not
// run yet makes it wait.
func TestForwardedMessageIsOnTime(t *testing.T) {
	t.Parallel()
	for outbox, newOutbox := range outboxes {
		t.Run(outbox, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				messages := subscribe(t, s)
				box, rows := newOutbox(t, s)
				sender := forwarder.NewPublisher(box, forwarder.PublisherConfig{})
				due, busy := map[string]time.Time{}, map[string]time.Duration{}
				for name, way := range waysToDelayUntil {
					for _, cut := range []time.Duration{0, 999 * time.Millisecond} { // the least and the most
						order := message.NewMessage(fmt.Sprint(name, " cut by ", cut), []byte("payload"))
						order.Metadata.Set("kind", "gift")
						due[order.UUID] = time.Now().Add(5 * time.Second).Truncate(time.Second).Add(cut)
						begin := time.Now()
						way.set(order, due[order.UUID])
						busy[order.UUID] = time.Since(begin)
						require.NoError(t, sender.Publish(topic, order))
					}
				}
				outlast(1200 * time.Millisecond)
				publisher := &timedPublisher{Publisher: newPublisher(t, s)}
				forwardTo(t, publisher, rows)

				for range due {
					msg, delivery := receive(t, messages)
					name, _, _ := strings.Cut(msg.UUID, " cut by ")
					late := delivery.DueAt.Sub(due[msg.UUID])
					busy := busy[msg.UUID] + publisher.took(msg.UUID)
					t.Logf("%s: due %v after its time; setting the delay and publishing took %v", msg.UUID, late, busy)
					require.GreaterOrEqual(t, late, time.Duration(0), "before its time")
					require.LessOrEqual(t, late, waysToDelayUntil[name].latest(busy))
					require.Equal(t, "payload", string(msg.Payload))
					require.Equal(t, message.Metadata{"kind": "gift"}, msg.Metadata)
					msg.Ack()
				}
			})
		})
	}
}

var waysToDelayUntil = map[string]struct {
	set    func(*message.Message, time.Time)
	latest func(busy time.Duration) time.Duration
}{
	"watermill for": {func(msg *message.Message, due time.Time) {
		delay.Message(msg, delay.For(time.Until(due)))
	}, atMostASecond},
	"watermill until": {func(msg *message.Message, due time.Time) {
		delay.Message(msg, delay.Until(due))
	}, atMostASecond},
	"delay_until": {redisdelay.DelayUntil, func(time.Duration) time.Duration { return time.Millisecond }},
}

// atMostASecond does not count what it took to set the delay, and to publish the message when the
// forwarder had it: what is left of the delay begins then, by the server's clock. Both are rounded
// up.
func atMostASecond(busy time.Duration) time.Duration { return time.Second + busy + 2*time.Millisecond }

// outlast is what an outbox does with a message: it lets time pass. It synchronises nothing.
func outlast(d time.Duration) { <-time.After(d) }

// outboxes are where messages wait for a forwarder: this Pub/Sub, and one that knows no delays.
var outboxes = map[string]func(*testing.T, redistest.Server) (message.Publisher, message.Subscriber){
	"redis": func(t *testing.T, s redistest.Server) (message.Publisher, message.Subscriber) {
		subscriber := newSubscriber(t, s)
		require.NoError(t, subscriber.SubscribeInitialize("forwarder_topic"))
		return newPublisher(t, s), subscriber
	},
	"another database": func(*testing.T, redistest.Server) (message.Publisher, message.Subscriber) {
		box := &table{rows: make(chan *message.Message, 10)}
		return box, box
	},
}

func forward(t testing.TB, s redistest.Server, from message.Subscriber) {
	t.Helper()
	forwardTo(t, newPublisher(t, s), from)
}

func forwardTo(t testing.TB, to message.Publisher, from message.Subscriber) {
	t.Helper()
	f, err := forwarder.NewForwarder(from, to, watermill.NopLogger{}, forwarder.Config{})
	require.NoError(t, err)
	start(t, f)
}

// timedPublisher notes how long it took to publish each message.
type timedPublisher struct {
	message.Publisher
	times sync.Map // by UUID
}

func (p *timedPublisher) Publish(topic string, messages ...*message.Message) error {
	begin := time.Now()
	err := p.Publisher.Publish(topic, messages...)
	for _, msg := range messages {
		p.times.Store(msg.UUID, time.Since(begin))
	}
	return err
}

func (p *timedPublisher) took(uuid string) time.Duration {
	took, _ := p.times.Load(uuid) // long before it is due
	return took.(time.Duration)
}

// table is an outbox that hands out what it has.
type table struct{ rows chan *message.Message }

func (b *table) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		b.rows <- msg.Copy()
	}
	return nil
}

func (b *table) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-b.rows:
				out <- msg
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (b *table) Close() error { return nil }

// A delay in the context of a message delays it once, though the envelope in the outbox has that
// context too.
func TestForwardedMessageIsDelayedOnce(t *testing.T) {
	t.Parallel()
	onHandMoved(t, func(t *testing.T, s handMovedServer) {
		expectDrained(t, s.Server)
		forward(t, s.Server, newSubscriber(t, s.Server, ofLongLease))
		sender := forwarder.NewPublisher(newPublisher(t, s.Server), forwarder.PublisherConfig{})
		messages := subscribe(t, s.Server, ofLongLease)
		due := serverTime(t, s.Client).Add(time.Hour)

		order := message.NewMessage("order", nil)
		waysToDelay["context"](order, time.Hour)
		require.NoError(t, sender.Publish(topic, order))
		s.nothingYet(t, sender, topic, messages)
		s.advance(t, time.Hour)
		msg, delivery := s.receiveAtOnce(t, messages)
		require.Equal(t, "order", msg.UUID)
		requireBetween(t, delivery.DueAt, due, serverTime(t, s.Client))
		msg.Ack()
	})
}

// A delay that is relative begins when the message is published, which the forwarder does.
func TestRelativeDelayBeginsWhenItIsForwarded(t *testing.T) {
	t.Parallel()
	onHandMoved(t, func(t *testing.T, s handMovedServer) {
		expectDrained(t, s.Server)
		subscriber := newSubscriber(t, s.Server, ofLongLease)
		require.NoError(t, subscriber.SubscribeInitialize("forwarder_topic"))
		sender := forwarder.NewPublisher(newPublisher(t, s.Server), forwarder.PublisherConfig{})
		require.NoError(t, sender.Publish(topic, newMessage("order", time.Hour)))
		s.advance(t, 20*time.Minute)
		earliest := serverTime(t, s.Client).Add(time.Hour)
		forward(t, s.Server, subscriber)
		due := s.awaitPendingDue(t, topic)
		requireBetween(t, due, earliest, serverTime(t, s.Client).Add(time.Hour))
		messages := subscribe(t, s.Server)
		s.advance(t, time.Hour)
		msg, _ := s.receiveAtOnce(t, messages)
		msg.Ack()
	})
}

// A message that was delayed before it was forwarded begins its backoff with InitialInterval.
func TestDelayOnErrorOfAForwardedMessage(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		forward(t, s, newSubscriber(t, s))
		failing := newFailing(middleware.DelayOnError{
			InitialInterval: 30 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour,
		}, 1)
		router := newRouter(t)
		failing.add(router, "work", newSubscriber(t, s))
		start(t, router)
		order := message.NewMessage("order", nil)
		delay.Message(order, delay.For(300*time.Millisecond))
		sender := forwarder.NewPublisher(newPublisher(t, s), forwarder.PublisherConfig{})
		require.NoError(t, sender.Publish(topic, order))

		first := failing.next(t)
		require.Empty(t, first.metadata)
		again := failing.next(t)
		require.Equal(t, "30ms", again.metadata.Get(delay.DelayedForKey))
		nacks.requireGap(t, first, again, 30*time.Millisecond)
	})
}

// The forwarder nacks a message that is no envelope: it becomes a dead letter after its last
// delivery, and holds up nothing.
func TestMessageThatIsNoEnvelopeDoesNotHoldUpTheForwarder(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		forward(t, s, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.MaxDeliveries = 2
			c.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
		}))
		publisher := newPublisher(t, s)
		messages := subscribe(t, s)
		require.NoError(t, publisher.Publish("forwarder_topic", message.NewMessage("odd", []byte("no envelope"))))
		sender := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{})
		require.NoError(t, sender.Publish(topic, message.NewMessage("order", nil)))
		msg, _ := receive(t, messages)
		require.Equal(t, "order", msg.UUID)
		msg.Ack()
		awaitDead(t, s, "forwarder_topic")
	})
}

// A message with a delay that cannot be read is not forwarded, and not lost.
func TestForwarderKeepsMessagesThatItCannotPublish(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		forward(t, s, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 1 }))
		odd := message.NewMessage("odd", nil)
		odd.Metadata.Set(redisdelay.DelayKey, "15 minutes")
		require.True(t, errors.Is(newPublisher(t, s).Publish(topic, odd), redisdelay.ErrInvalidDelay))
		sender := forwarder.NewPublisher(newPublisher(t, s), forwarder.PublisherConfig{})
		require.NoError(t, sender.Publish(topic, odd), "the envelope has no delay")
		awaitDead(t, s, "forwarder_topic")
	})
}

// awaitDead waits until a topic has a dead letter.
func awaitDead(t testing.TB, s redistest.Server, topic string) {
	t.Helper()
	dead := queue.NewKeys(s.Prefix, topic).Dead(redisdelay.DefaultConsumerGroup)
	require.Eventually(t, func() bool { return exists(t, s.Client, dead) }, patience, time.Millisecond)
}
