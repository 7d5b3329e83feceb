package redisdelaytest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

const topic = "reminders"

var ctx = context.Background()

func serverOf(t *testing.T, s *redisdelaytest.Server) redistest.Server {
	return redistest.On(t, s.Client(), redisdelay.DefaultKeyPrefix)
}

func publisher(t *testing.T, s *redisdelaytest.Server) *redisdelay.Publisher {
	t.Helper()
	return testkit.NewPublisher(t, serverOf(t, s))
}

func subscribe(t *testing.T, s *redisdelaytest.Server) (<-chan *message.Message, *redisdelay.Subscriber) {
	t.Helper()
	sub := testkit.NewSubscriber(t, serverOf(t, s), func(c *redisdelay.SubscriberConfig) { c.CloseTimeout = time.Second })
	return testkit.SubscribeTo(t, sub, topic), sub
}

func delayed(uuid string, d time.Duration) *message.Message {
	return testkit.Delay(message.NewMessage(uuid, message.Payload(uuid)), d)
}

func start(t *testing.T) *redisdelaytest.Server {
	t.Helper()
	t.Parallel()
	s := redisdelaytest.Start(t)
	t.Cleanup(func() { queuetest.Check(t, s.Client(), redisdelay.DefaultKeyPrefix) })
	return s
}

func TestDueMessagesAreReadyWhenAdvanceReturns(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	p := publisher(t, s)
	now := s.Now()
	require.NoError(t, p.Publish(topic, delayed("second", 24*time.Hour), delayed("first", time.Hour), delayed("third", 25*time.Hour)))
	require.Equal(t, now, s.Now(), "the clock stands still")

	s.Advance(24 * time.Hour)
	require.Len(t, s.Scheduled(topic), 1, "moved when it returns")
	began := time.Now()
	for _, want := range []string{"first", "second"} {
		msg := s.Receive(t, messages)
		require.Equal(t, want, msg.UUID)
		require.True(t, msg.Ack())
	}
	require.Less(t, time.Since(began), 4*time.Second, "without waiting for a poll")
	s.AwaitScheduled(t, topic, 1)
	s.Advance(time.Hour - time.Millisecond)
	require.Len(t, s.Scheduled(topic), 1, "not a millisecond early")
	s.Advance(time.Millisecond)
	s.Receive(t, messages).Ack()
	s.AwaitDrained(t, topic)
}

// Due times are in whole milliseconds, so the clock must be too.
func TestClockMovesByWholeMilliseconds(t *testing.T) {
	s := start(t)
	begin := s.Now()
	s.Advance(1500 * time.Microsecond)
	require.Equal(t, 2*time.Millisecond, s.Now().Sub(begin))
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 15*time.Minute)))
	s.RequireScheduled(t, topic, s.Now().Add(15*time.Minute))
}

// Without a subscriber no scheduler runs, but due messages must be ready.
func TestAdvanceNeedsNoSubscriber(t *testing.T) {
	s := start(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client()}, nil)
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize(topic))
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", time.Hour)))
	s.Advance(time.Hour)
	stats, err := s.Admin().Stats(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, 1, stats.Groups[0].Ready)
	require.False(t, stats.Scheduled, "it leaves the work to others")
}

func TestMoreThanAChunkIsDueAtOnce(t *testing.T) {
	s := start(t)
	_, sub := subscribe(t, s)
	require.NoError(t, sub.Close())
	const many = 2500
	var all []*message.Message
	for i := range many {
		all = append(all, delayed(fmt.Sprint(i), time.Hour))
	}
	require.NoError(t, publisher(t, s).Publish(topic, all...))
	require.Len(t, s.Scheduled(topic), many)
	s.Advance(time.Hour)
	s.RequireNothingScheduled(t, topic)
	stats, err := s.Admin().Stats(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, many, stats.Groups[0].Ready)
}

func TestHandlersKeepTheirMessagesWhenTheClockMoves(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 0)))
	msg := s.Receive(t, messages)
	s.Advance(30 * 24 * time.Hour)
	require.NoError(t, msg.Context().Err())
	require.True(t, msg.Ack())
	s.AwaitDrained(t, topic)
}

func TestExpireLeasesEndsLeases(t *testing.T) {
	t.Parallel()
	for range 20 {
		if anotherGetsWhatWasHeld(t) {
			return
		}
	}
	t.Fatal("its first holder got the message back each time")
}

// anotherGetsWhatWasHeld returns false if the first holder gets its message back, which is allowed.
func anotherGetsWhatWasHeld(t *testing.T) bool {
	s := redisdelaytest.Start(t)
	t.Cleanup(func() { queuetest.Check(t, s.Client(), redisdelay.DefaultKeyPrefix) })
	first, _ := subscribe(t, s)
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 0)))
	held := s.Receive(t, first)
	second, _ := subscribe(t, s)
	s.ExpireLeases(topic)
	var msg *message.Message
	var another bool
	select {
	case msg = <-first:
	case msg = <-second:
		another = true
	case <-time.After(10 * time.Second):
		t.Fatal("no message came")
	}
	require.NotNil(t, msg, "a subscription has ended")
	require.Equal(t, held.UUID, msg.UUID)
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok)
	require.True(t, delivery.Redelivered)
	held.Ack() // too late
	msg.Ack()
	s.AwaitDrained(t, topic)
	return another
}

// No other subscription could take the message.
func TestHolderIsToldThatItsLeaseHasExpired(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 0)))
	held := s.Receive(t, messages)
	s.ExpireLeases(topic)
	require.ErrorIs(t, context.Cause(held.Context()), redisdelay.ErrLeaseLost)
	msg := s.Receive(t, messages)
	require.Equal(t, held.UUID, msg.UUID)
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok)
	require.True(t, delivery.Redelivered)
	held.Ack() // too late
	require.NoError(t, msg.Context().Err())
	msg.Ack()
	s.AwaitDrained(t, topic)
}

// A holder that extends its lease at the same time loses it too.
func TestExpireLeasesEndsALeaseThatIsExtendedMeanwhile(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 0)))
	held := s.Receive(t, messages)
	holder := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer holder.Close()
	var once sync.Once
	s.Client().AddHook(redistest.AfterEach(func(call redis.Cmder) {
		if args := call.Args(); args[0] == "zadd" {
			once.Do(func() {
				member := redis.Z{Score: float64(s.Now().Add(time.Hour).UnixMilli()), Member: args[len(args)-1]}
				require.NoError(t, holder.ZAddXX(ctx, args[1].(string), member).Err())
			})
		}
	}))
	s.ExpireLeases(topic)
	require.ErrorIs(t, context.Cause(held.Context()), redisdelay.ErrLeaseLost)
	s.Receive(t, messages).Ack()
	s.AwaitDrained(t, topic)
}

func TestClockMovesFromOneDueTimeToTheNext(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	p := publisher(t, s)
	begin := s.Now()
	require.NoError(t, p.Publish(topic, delayed("later", 3*time.Hour), delayed("sooner", time.Hour)))
	for _, want := range []struct {
		uuid  string
		after time.Duration
	}{{"sooner", time.Hour}, {"nacked", 2 * time.Hour}, {"later", 3 * time.Hour}} {
		next, ok := s.AdvanceToNext()
		require.True(t, ok)
		require.Equal(t, want.after, next.Sub(begin), want.uuid)
		msg := s.Receive(t, messages)
		if want.uuid == "sooner" {
			redisdelay.DelayFor(msg, time.Hour)
			msg.Nack()
			retrying := s.AwaitRetrying(t, topic, "", 1)
			require.Equal(t, "sooner", retrying[0].UUID)
			require.True(t, retrying[0].Places[0].At.Equal(s.Now().Add(time.Hour)))
			continue
		}
		msg.Ack()
	}
	_, ok := s.AdvanceToNext()
	require.False(t, ok)
	s.AwaitDrained(t, topic)
}

// Overdue messages stay waiting, because there is no group.
func TestClockMovesToTheNextDueTimeWithoutSubscribers(t *testing.T) {
	s := start(t)
	begin := s.Now()
	require.NoError(t, publisher(t, s).Publish(topic, delayed("1", time.Minute), delayed("2", time.Hour)))
	for _, want := range []time.Duration{time.Minute, time.Hour} {
		next, ok := s.AdvanceToNext()
		require.True(t, ok, want)
		require.Equal(t, want, next.Sub(begin))
	}
	_, ok := s.AdvanceToNext()
	require.False(t, ok)
	require.Len(t, s.Scheduled(topic), 2)
}

// Messages without a delay are scheduled too, until there is a group.
func TestDueMessagesAreScheduledUntilThereIsAGroup(t *testing.T) {
	s := start(t)
	p := publisher(t, s)
	require.NoError(t, p.Publish(topic, message.NewMessage("now", nil), delayed("later", time.Hour)))
	s.Advance(time.Hour)
	require.Len(t, s.Scheduled(topic), 2)
	messages, _ := subscribe(t, s)
	s.Advance(0)
	s.RequireNothingScheduled(t, topic)
	for _, want := range []string{"now", "later"} {
		msg := s.Receive(t, messages)
		require.Equal(t, want, msg.UUID)
		msg.Ack()
	}
	s.AwaitDrained(t, topic)
}

// Users of a group run in real time.
func TestNoGroupExpiresByAdvance(t *testing.T) {
	s := start(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client(), ConsumerGroup: "g", GroupExpiry: time.Hour}, nil)
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize(topic))
	require.NoError(t, sub.Close())
	for range 90 { // in steps, as a scheduler that comes late gives a group more time
		s.Advance(time.Minute)
	}
	require.NoError(t, only(s.Admin().DeleteGroup(ctx, topic, "g", admin.DeleteOptions{})))
}

// A process that ends when it is woken does not answer.
func TestAdvanceDoesNotWaitForEndedProcesses(t *testing.T) {
	s := start(t)
	mailbox := s.Client().Subscribe(ctx, queue.MailboxChannel(redisdelay.DefaultKeyPrefix, queue.Token()))
	_, err := mailbox.Receive(ctx)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := mailbox.ReceiveMessage(ctx)
		ended <- errors.Join(err, mailbox.Close())
	}()
	began := time.Now()
	s.Advance(time.Hour)
	require.Less(t, time.Since(began), 5*time.Second)
	require.NoError(t, <-ended)
}

func TestExpireLeasesFailsWithoutTheTopic(t *testing.T) {
	t.Parallel()
	s, err := redisdelaytest.New(redisdelaytest.Config{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", time.Hour)))
	begin := s.Client().Keys(ctx, "*").Val()
	require.PanicsWithError(t, `redisdelaytest: expire leases of topic "remainders": topic "remainders": not found`,
		func() { s.ExpireLeases("remainders") })
	require.ElementsMatch(t, begin, s.Client().Keys(ctx, "*").Val())
}

// The program may have keys that are named like the registry of a prefix.
func TestAdvanceIgnoresKeysOfTheProgram(t *testing.T) {
	s := start(t)
	require.NoError(t, s.Client().SAdd(ctx, "news:topics", "sports").Err())
	require.NoError(t, s.Client().RPush(ctx, "old:topics", "weather").Err())
	s.Advance(time.Hour)
	_, ok := s.AdvanceToNext()
	require.False(t, ok)
	require.ElementsMatch(t, []string{"news:topics", "old:topics"}, s.Client().Keys(ctx, "*").Val())
}

// The program's own channels get no message.
func TestAdvanceIgnoresChannelsOfTheProgram(t *testing.T) {
	s := start(t)
	const channel = "app:mailbox:1"
	own := s.Client().Subscribe(ctx, channel)
	defer own.Close()
	_, err := own.Receive(ctx)
	require.NoError(t, err)
	s.Advance(time.Hour)
	require.NoError(t, s.Client().Publish(ctx, channel, "the program's").Err())
	msg, err := own.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "the program's", msg.Payload)
}

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatal(args ...any) {
	r.failure = fmt.Sprint(args...)
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func failing(t *testing.T, f func(t testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}

func TestFailuresListTheScheduledMessages(t *testing.T) {
	s := start(t)
	due := s.Now().Add(time.Hour)
	require.Contains(t, failing(t, func(t testing.TB) { s.RequireScheduled(t, topic, due) }), "scheduled are: none")
	require.NoError(t, publisher(t, s).Publish(topic, delayed("the uuid", time.Hour)))
	require.Equal(t, "the uuid", s.RequireScheduled(t, topic, due).UUID)
	said := failing(t, func(t testing.TB) { s.RequireNothingScheduled(t, topic) })
	require.Contains(t, said, `in 1h0m0s: UUID "the uuid"`)
	require.True(t, strings.HasPrefix(said, `messages of topic "reminders" are scheduled:`), said)
	require.NotEmpty(t, failing(t, func(t testing.TB) { s.RequireScheduled(t, topic, due.Add(time.Millisecond)) }))
}

func TestOtherPrefixesAreServedToo(t *testing.T) {
	t.Parallel()
	s := redisdelaytest.StartWith(t, redisdelaytest.Config{KeyPrefix: "my:app", Unmarshaler: redisdelay.JSONMarshaler{}})
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client(), KeyPrefix: "my:app", Marshaler: redisdelay.JSONMarshaler{}}, nil)
	require.NoError(t, err)
	defer p.Close()
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client(), KeyPrefix: "my:app", Unmarshaler: redisdelay.JSONMarshaler{}}, nil)
	require.NoError(t, err)
	defer sub.Close()
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, delayed("x", time.Hour)))
	require.Equal(t, "x", s.RequireScheduled(t, topic, s.Now().Add(time.Hour)).UUID)
	s.Advance(time.Hour)
	s.Receive(t, messages).Ack()
	s.AwaitDrained(t, topic)
}

// A message is claimed just before the clock moves, and a scheduler runs before its lease and its
// group are moved.
func TestAdvanceEndsNoLeaseAndNoGroup(t *testing.T) {
	for name, end := range map[string]func(of *queue.Topic) error{
		"lease": func(of *queue.Topic) error { return only(of.Expire(ctx)) },
		"group": func(of *queue.Topic) error { return only(of.RemoveUnused(ctx, "group")) },
	} {
		t.Run(name, func(t *testing.T) { advanceWhile(t, end) })
	}
}

func only[T any](_ T, err error) error { return err }

func advanceWhile(t *testing.T, end func(of *queue.Topic) error) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()}) // not the one that Advance uses
	t.Cleanup(func() { _ = client.Close() })
	server := redistest.On(t, client, redisdelay.DefaultKeyPrefix)
	messages := testkit.SubscribeTo(t, testkit.NewSubscriber(t, server, func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.GroupExpiry, c.CloseTimeout = "group", 2*time.Minute, time.Second
	}), topic)
	p := testkit.NewPublisher(t, server)
	require.NoError(t, p.Publish(topic, delayed("a", 0)))
	require.True(t, s.Receive(t, messages).Ack())
	s.AwaitDrained(t, topic)

	held := func() bool {
		n, err := client.ZCard(ctx, queue.NewKeys(redisdelay.DefaultKeyPrefix, topic).Unack("group")).Result()
		return err == nil && n == 1
	}
	ended := make(chan error, 1)
	steps := map[string]func(){
		"time": sync.OnceFunc(func() {
			require.NoError(t, p.Publish(topic, delayed("b", 0)))
			require.Eventually(t, held, 10*time.Second, time.Millisecond)
		}),
		"zrange": sync.OnceFunc(func() {
			go func() { ended <- end(queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, topic)) }()
			select {
			case err := <-ended:
				ended <- err
			case <-time.After(50 * time.Millisecond): // it waits
			}
		}),
	}
	s.Client().AddHook(redistest.AfterEach(func(call redis.Cmder) {
		if step, ok := steps[call.Name()]; ok {
			step()
		}
	}))
	s.Advance(time.Hour)
	require.NoError(t, <-ended)
	require.True(t, held())
	msg := s.Receive(t, messages)
	require.Equal(t, "b", msg.UUID)
	require.True(t, msg.Ack())
	s.AwaitDrained(t, topic)
	select {
	case msg := <-messages:
		require.Fail(t, "it came again", msg.UUID)
	default:
	}
}

// The test's own clock ends a pause, as a scheduler does.
func TestAdvanceEndsPausesWhoseTimeIsOver(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	for _, pause := range []func() (admin.Pause, error){
		func() (admin.Pause, error) { return s.Admin().Pause(ctx, topic, admin.PauseOptions{For: time.Minute}) },
		func() (admin.Pause, error) {
			return s.Admin().Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup(""), For: time.Minute})
		},
	} {
		_, err := pause()
		require.NoError(t, err)
		require.NoError(t, publisher(t, s).Publish(topic, delayed("x", time.Second)))
		s.Advance(time.Minute - time.Millisecond)
		none(t, messages)
		s.Advance(time.Millisecond)
		require.True(t, s.Receive(t, messages).Ack())
		s.AwaitDrained(t, topic)
	}
}
