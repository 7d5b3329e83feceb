package tests

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func init() {
	children["scheduler"] = schedulerChild
	children["idle subscriber"] = idleSubscriberChild
}

func TestSchedulerAloneMakesMessagesReady(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.CheckDrained(t, s.Client, s.Prefix) })
		runScheduler(t, scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix})
		subscriber := newSubscriber(t, s)
		require.NoError(t, subscriber.SubscribeInitialize(topic))
		publisher := newPublisher(t, s)
		require.NoError(t, publisher.Publish(topic,
			newMessage("second", 300*time.Millisecond), newMessage("first", 200*time.Millisecond)))

		awaitReady(t, s, topic, 2, prompt)

		messages, err := subscriber.Subscribe(context.Background(), topic)
		require.NoError(t, err)
		for _, uuid := range []string{"first", "second"} {
			msg, delivery := receive(t, messages)
			require.Equal(t, uuid, msg.UUID)
			require.False(t, serverTime(t, s.Client).Before(delivery.DueAt))
			msg.Ack()
		}
	})
}

func TestSchedulerServesANewTopicWithinASecond(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		runScheduler(t, scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix})
		subscriber := newSubscriber(t, s)
		publisher := newPublisher(t, s)
		for i := range 5 { // the first may be found by the scheduler's first look, the others not
			name := fmt.Sprint(topic, i)
			require.NoError(t, subscriber.SubscribeInitialize(name))
			require.NoError(t, publisher.Publish(name, newMessage("new", time.Millisecond)))
			awaitReady(t, s, name, 1, time.Second)
		}
		queuetest.Check(t, s.Client, s.Prefix)
	})
}

// It serves all topics there are, and makes none.
func TestSchedulerLetsADeletedTopicBe(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := redis.NewClient(s.Client.(*redis.Client).Options())
		t.Cleanup(func() { _ = client.Close() })
		var looks atomic.Int64 // the calls of the scheduler
		client.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			defer looks.Add(1)
			return next()
		}))
		runScheduler(t, scheduler.Config{Client: client, KeyPrefix: s.Prefix})
		keys := queue.NewKeys(s.Prefix, topic)
		use := func() {
			require.NoError(t, newSubscriber(t, s).SubscribeInitialize(topic))
			require.NoError(t, newPublisher(t, s).Publish(topic, newMessage("", time.Millisecond)))
			awaitReady(t, s, topic, 1, time.Second)
		}
		use()
		holder := s.Client.HGet(t.Context(), keys.Scheduler(), "holder").Val()
		channel, receiver, _ := strings.Cut(holder, "|")
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		_, err = a.DeleteTopic(t.Context(), topic, admin.DeleteOptions{})
		require.NoError(t, err)
		before := looks.Load()
		require.NoError(t, s.Client.Publish(t.Context(), channel, receiver+" 0").Err())
		require.Eventually(t, func() bool { return looks.Load() >= before+3 }, prompt, time.Millisecond, "it looks")
		require.Zero(t, s.Client.Exists(t.Context(), keys.Meta(), queue.Registry(s.Prefix)).Val())
		use()
	})
}

// In a Cluster the registry is on a node of its own. One that does not answer is not to hold up
// topics of others.
func TestSchedulerThatServesATopicLeavesTheRegistryAlone(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := redis.NewClient(s.Client.(*redis.Client).Options())
		t.Cleanup(func() { _ = client.Close() })
		var refused atomic.Bool
		client.AddHook(redistest.BeforeEach(func(call redis.Cmder) error {
			if refused.Load() && call.Name() == "sismember" {
				return io.ErrUnexpectedEOF
			}
			return nil
		}))
		runScheduler(t, scheduler.Config{Client: client, KeyPrefix: s.Prefix, Topics: []string{topic}})
		awaitHolder := func() { // it has read the groups
			require.Eventually(t, func() bool {
				return s.Client.HExists(t.Context(), queue.NewKeys(s.Prefix, topic).Scheduler(), "holder").Val()
			}, patience, time.Millisecond)
		}
		awaitHolder()
		refused.Store(true)
		require.NoError(t, newSubscriber(t, s).SubscribeInitialize(topic))
		require.NoError(t, newPublisher(t, s).Publish(topic, newMessage("", time.Millisecond)))
		awaitReady(t, s, topic, 1, time.Second)
	})
}

// A scheduler of all topics has served it before, and has nothing to look for there until its poll.
func TestATopicThatIsMadeAnewIsServedAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		runScheduler(t, scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix})
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, newSubscriber(t, s).SubscribeInitialize(topic))
			require.NoError(t, newPublisher(t, s).Publish(topic, newMessage("", time.Millisecond)))
			awaitReady(t, s, topic, 1, time.Second)
			_, err = a.DeleteTopic(t.Context(), topic, admin.DeleteOptions{})
			require.NoError(t, err)
		}
	})
}

func TestSchedulerOfNamedTopicsServesNoOthers(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		runScheduler(t, scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix, Topics: []string{topic}})
		subscriber := newSubscriber(t, s)
		publisher := newPublisher(t, s)
		for _, name := range []string{"other", topic} {
			require.NoError(t, subscriber.SubscribeInitialize(name))
			require.NoError(t, publisher.Publish(name, newMessage("", time.Millisecond)))
		}
		awaitReady(t, s, topic, 1, prompt)
		other := queue.NewKeys(s.Prefix, "other")
		require.Zero(t, s.Client.LLen(t.Context(), other.Ready(redisdelay.DefaultConsumerGroup)).Val())
		require.False(t, s.Client.HExists(t.Context(), other.Scheduler(), "holder").Val())
	})
}

func TestManySchedulersAndSubscribersDeliverEachMessageOnce(t *testing.T) {
	t.Parallel()
	const schedulers, subscribers, messages = 2, 10, 1000
	server := redistest.Start(t)
	expectDrained(t, on(t, server.Client(t)))
	for range schedulers {
		runScheduler(t, scheduler.Config{Client: server.Client(t)})
	}
	received := newReceipts()
	for range subscribers {
		received.ackAll(subscribe(t, on(t, server.Client(t))))
	}
	publisher := newPublisher(t, on(t, server.Client(t)))
	for i := range messages {
		publish(t, publisher, fmt.Sprint(i), time.Duration(rand.Int64N(int64(time.Second))))
	}
	received.await(t, messages)
}

func TestStoppedHolderHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		require.NoError(t, newSubscriber(t, s).SubscribeInitialize(topic))
		publisher := newPublisher(t, s)
		publish(t, publisher, "far", time.Hour) // until then, the holder need not show itself
		config := scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix}
		stop := runScheduler(t, config)
		holder := awaitRole(t, s, "holder", patience)
		runScheduler(t, config)
		standby := awaitRole(t, s, "standby", patience)
		require.NotEqual(t, holder, standby)

		stop()

		require.Eventually(t, func() bool {
			return role(t, s, "holder") == standby
		}, prompt, time.Millisecond)
		publish(t, publisher, "near", 100*time.Millisecond)
		awaitReady(t, s, topic, 1, prompt)
	})
}

// schedulerChild serves all topics until it is killed.
func schedulerChild() int {
	s, err := scheduler.New(scheduler.Config{Client: childClient()}, nil)
	orDie(err)
	orDie(s.Run(context.Background()))
	return 0
}

// idleSubscriberChild takes no message.
func idleSubscriberChild() int {
	childSubscribe(ofCrashLease)
	select {}
}

func TestKilledHolderDelaysNothingByMoreThanASecond(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"scheduler", "idle subscriber"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client(t)
			require.NoError(t, newSubscriber(t, on(t, client)).SubscribeInitialize(topic))
			child := startChild(t, server, role)
			awaitRole(t, on(t, client), "holder", patience)
			messages := subscribe(t, on(t, client), ofCrashLease)
			awaitRole(t, on(t, client), "standby", patience)
			publisher := newPublisher(t, on(t, client))
			publish(t, publisher, "waiting", 2*time.Second)
			publish(t, publisher, "far", time.Hour)

			child.kill()
			awaitGone(t, client, role)

			msg, delivery := receive(t, messages)
			require.Equal(t, "waiting", msg.UUID)
			requireOnTime(t, delivery, time.Now())
			msg.Ack()
			queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
		})
	}
}

// All that would be told of an earlier event are dead: it is found by the poll.
func TestKilledHolderAndStandbyDelayAnEarlierMessageByNoMoreThanThePoll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	require.NoError(t, newSubscriber(t, on(t, client)).SubscribeInitialize(topic))
	publisher := newPublisher(t, on(t, client))
	publish(t, publisher, "far", time.Hour)
	holder := startChild(t, server, "scheduler")
	awaitRole(t, on(t, client), "holder", patience)
	standby := startChild(t, server, "scheduler")
	awaitRole(t, on(t, client), "standby", patience)
	messages := subscribe(t, on(t, client))

	holder.kill()
	standby.kill()
	awaitGone(t, client, "scheduler")
	publish(t, publisher, "earlier than all", 100*time.Millisecond)

	msg, delivery := receive(t, messages)
	require.Equal(t, "earlier than all", msg.UUID)
	late := time.Since(delivery.DueAt)
	require.False(t, late < 0, "early")
	// A second of it is the time that the holder is given to do its work.
	require.Less(t, late, time.Second+fallbackPoll+prompt)
	t.Logf("late by %v", late)
	msg.Ack()
}

func TestSchedulerConfigIsChecked(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, test := range map[string]struct {
		config scheduler.Config
		says   []string
	}{
		"no client":   {scheduler.Config{}, []string{"Client"}},
		"nil client":  {scheduler.Config{Client: (*redis.Client)(nil)}, []string{"Client"}},
		"ring":        {scheduler.Config{Client: ring}, []string{"Client", "Ring"}},
		"braces":      {scheduler.Config{Client: client, KeyPrefix: "{app}"}, []string{"KeyPrefix", "{app}"}},
		"two at once": {scheduler.Config{KeyPrefix: "app}"}, []string{"Client", "KeyPrefix"}},
		"empty topic": {scheduler.Config{Client: client, Topics: []string{topic, "", strings.Repeat("t", 600)}}, []string{"Topics[1]", "Topics[2]"}},
	} {
		_, err := scheduler.New(test.config, nil)
		require.ErrorIs(t, err, scheduler.ErrInvalidConfig, name)
		for _, part := range test.says {
			require.ErrorContains(t, err, part, name)
		}
	}
	_, err := scheduler.New(scheduler.Config{Client: client}, nil)
	require.NoError(t, err)
}

// It is not parallel, for then the only goroutines that come and go are its own.
func TestSchedulerRunsOnceAndLeavesNothingBehind(t *testing.T) {
	client := redistest.Start(t).Client(t)
	require.NoError(t, newSubscriber(t, on(t, client)).SubscribeInitialize(topic))
	before := goleak.IgnoreCurrent()
	s, err := scheduler.New(scheduler.Config{Client: client}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	awaitRole(t, on(t, client), "holder", patience)

	require.ErrorIs(t, s.Run(ctx), scheduler.ErrAlreadyRun)
	cancel()
	require.NoError(t, <-ended)

	require.Empty(t, role(t, on(t, client), "holder"))
	goleak.VerifyNone(t, before)
	require.NoError(t, client.Ping(t.Context()).Err(), "the client is the caller's")
	require.ErrorIs(t, s.Run(t.Context()), scheduler.ErrAlreadyRun)
}

// awaitReady waits until a number of messages are ready for the default group.
func awaitReady(t *testing.T, s redistest.Server, topic string, messages int64, within time.Duration) {
	t.Helper()
	ready := queue.NewKeys(s.Prefix, topic).Ready(redisdelay.DefaultConsumerGroup)
	require.Eventually(t, func() bool {
		return s.Client.LLen(t.Context(), ready).Val() == messages
	}, within, time.Millisecond)
}

// role is the address of who has a role in the scheduling of the topic.
func role(t *testing.T, s redistest.Server, role string) string {
	t.Helper()
	address, err := s.Client.HGet(t.Context(), queue.NewKeys(s.Prefix, topic).Scheduler(), role).Result()
	if err != redis.Nil {
		assert.NoError(t, err)
	}
	return address
}

func awaitRole(t *testing.T, s redistest.Server, name string, within time.Duration) (address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		address = role(t, s, name)
		return address != ""
	}, within, time.Millisecond, "nobody is the "+name)
	return address
}

// Its topics keep more workers waiting than one node has.
func TestANodeThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	s := redistest.On(t, client, "test")
	hangs, _ := cluster.Owner("{0}")
	var topics []string // the first dozen on the node that hangs
	others := map[string]redis.UniversalClient{}
	for i := 0; len(topics) < 12 || len(others) < 3; i++ {
		topic := fmt.Sprint(i)
		if owner, _ := cluster.Owner("{" + topic + "}"); owner != hangs {
			others[topic] = owner.Client(t)
		} else {
			topics = append(topics, topic)
		}
	}
	topics = slices.AppendSeq(topics, maps.Keys(others))
	subscriber := newSubscriber(t, s)
	for _, topic := range topics {
		require.NoError(t, subscriber.SubscribeInitialize(topic))
	}
	runScheduler(t, scheduler.Config{Client: client, KeyPrefix: s.Prefix, Topics: topics})
	publisher := newPublisher(t, s)
	due := serverTime(t, hangs.Client(t)).Add(3 * time.Second)
	for i, topic := range topics {
		msg := newMessage("x", 0)
		redisdelay.DelayUntil(msg, due.Add(time.Duration(i)*5*time.Millisecond))
		require.NoError(t, publisher.Publish(topic, msg))
		require.Eventually(t, func() bool {
			return client.HExists(t.Context(), queue.NewKeys(s.Prefix, topic).Scheduler(), "holder").Val()
		}, 10*time.Second, time.Millisecond)
	}
	hangs.Pause()
	t.Cleanup(hangs.Resume)
	require.True(t, time.Now().Before(due), "the machine is too slow")
	for topic, client := range others {
		awaitReady(t, redistest.On(t, client, s.Prefix), topic, 1, 20*time.Second)
	}
}
