package wake_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// enter makes a topic, which enters it in the registry.
func enter(t *testing.T, s redistest.Server, name string) *queue.Topic {
	t.Helper()
	topic := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, name)
	require.NoError(t, topic.Register(ctx, "a", queue.GroupOptions{}))
	return topic
}

// watch runs WatchTopics until the test ends.
func watch(t *testing.T, s redistest.Server) (found chan string, failures chan error, stop func()) {
	found, failures = make(chan string, 1000), make(chan error, 1000)
	ended := make(chan struct{})
	until, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		wake.WatchTopics(until, servers.MustClient(s.Client), s.Prefix, func(topic string, _ bool) { found <- topic }, func(err error) {
			if err != nil {
				failures <- err
			}
		})
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("WatchTopics does not end")
		}
	}
	t.Cleanup(stop)
	return found, failures, stop
}

func next(t *testing.T, found chan string, want string) {
	t.Helper()
	for {
		select {
		case topic := <-found:
			if topic == want {
				return
			}
		case <-time.After(patience):
			require.Fail(t, "not found", want)
		}
	}
}

func TestTopicsAreFoundThatAreThereAndThatCome(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		enter(t, s, "old")
		found, failures, stop := watch(t, s)
		next(t, found, "old")
		before := time.Now()
		for _, name := range []string{"new", "{new} topic"} {
			enter(t, s, name)
			next(t, found, name)
		}
		require.Less(t, time.Since(before), patience)
		stop()
		require.Empty(t, failures)
	})
}

// listening waits until WatchTopics hears announcements of database 0.
func listening(t *testing.T, s redistest.Server) (channel string) {
	t.Helper()
	channel = queue.NewTopics(s.Prefix, 0)
	require.Eventually(t, func() bool { return s.Client.PubSubNumSub(ctx, channel).Val()[channel] > 0 }, patience, time.Millisecond)
	return channel
}

// onlyNext waits for a topic, and fails if another comes before that is not among the old ones.
func onlyNext(t *testing.T, found chan string, want string, old ...string) {
	t.Helper()
	for topic := ""; topic != want; {
		select {
		case topic = <-found:
			require.Contains(t, append(old, want), topic)
		case <-time.After(patience):
			require.Fail(t, "not found", want)
		}
	}
}

func TestAnnouncementsThatAreNoTopicsAreIgnored(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		enter(t, s, "old")
		found, _, _ := watch(t, s)
		channel := listening(t, s)
		post(t, s, channel, "")
		post(t, s, channel, strings.Repeat("x", queue.MaxNameLength+1))
		post(t, s, channel, "not in the registry")
		enter(t, s, "end")
		onlyNext(t, found, "end", "old")
	})
}

// Of a flood, one check is under way, of some names. What there is no room for is looked for in the
// registry.
func TestAFloodOfAnnouncementsHidesNoTopic(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		options := *s.Client.(*redis.Client).Options()
		client := redis.NewClient(&options)
		defer client.Close()
		var checks, most atomic.Int64
		goOn := make(chan struct{})
		client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
			if calls[0].Name() == "sismember" {
				most.Store(max(most.Load(), int64(len(calls)), 1000*checks.Add(1)))
				defer checks.Add(-1)
				<-goOn
			}
			return next()
		}))
		found, failures, stop := watch(t, redistest.Server{Client: client, Prefix: s.Prefix})
		channel := listening(t, s)
		_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 20_000 {
				p.Publish(ctx, channel, fmt.Sprint("bogus ", i))
			}
			return nil
		})
		require.NoError(t, err)
		enter(t, s, "real")
		close(goOn)
		onlyNext(t, found, "real")
		stop()
		require.LessOrEqual(t, most.Load(), int64(1000), "one check at a time")
		require.Empty(t, failures)
	})
}

// All databases of a server share its channels.
func TestTopicsOfOtherDatabasesAreNotFound(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		options := *s.Client.(*redis.Client).Options()
		options.DB = 1
		other := redis.NewClient(&options)
		defer other.Close()
		defer func() { // the checks of the test's end see database 0 only
			keys, err := other.Keys(ctx, s.Prefix+"*").Result()
			require.NoError(t, err)
			require.NoError(t, other.Del(ctx, keys...).Err())
		}()
		found, _, _ := watch(t, s)
		theirs, _, _ := watch(t, redistest.Server{Client: other, Prefix: s.Prefix})
		listening(t, s)
		heard := s.Client.Subscribe(ctx, queue.NewTopics(s.Prefix, 0))
		defer heard.Close()
		_, err := heard.Receive(ctx)
		require.NoError(t, err)
		enter(t, redistest.Server{Client: other, Prefix: s.Prefix}, "theirs")
		onlyNext(t, theirs, "theirs")
		enter(t, s, "ours")
		onlyNext(t, found, "ours")
		for {
			msg, err := heard.ReceiveMessage(ctx)
			require.NoError(t, err)
			if msg.Payload != "" { // a test of a connection
				require.Equal(t, "ours", msg.Payload)
				return
			}
		}
	})
}

func TestTopicsAreFoundAgainAfterALostConnection(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	enter(t, s, "one")
	found, _, _ := watch(t, s)
	next(t, found, "one")
	require.NoError(t, client.SAdd(ctx, queue.Registry(s.Prefix), "unannounced").Err())
	require.NoError(t, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	next(t, found, "unannounced")
}

// In a Cluster the registry is on a node of its own, whose failover may forget what was entered
// last.
func TestTopicsThatTheRegistryHasLostAreEnteredAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	enter(t, s, "lost")
	deleted := enter(t, s, "deleted")
	found, _, _ := watch(t, s)
	next(t, found, "lost")
	require.NoError(t, (&operate.Topic{Topic: deleted}).Erase(ctx))
	require.NoError(t, client.Del(ctx, queue.Registry(s.Prefix)).Err())
	require.NoError(t, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()) // which has it read again
	require.Eventually(t, func() bool {
		return client.SIsMember(ctx, queue.Registry(s.Prefix), "lost").Val()
	}, patience, time.Millisecond)
	require.Equal(t, []string{"lost"}, client.SMembers(ctx, queue.Registry(s.Prefix)).Val(), "not the one that is not there")
}

// A topic that is entered again may be on a node of a Cluster that hangs.
func TestAnnouncementsAreHeardWhileATopicCannotBeEnteredAgain(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	client := in.Client(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(began) })
	var hangs atomic.Bool
	client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
		if hangs.Load() && strings.HasPrefix(calls[0].Name(), "eval") {
			once()
			<-goOn
		}
		return next()
	}))
	s, others := redistest.Server{Client: client, Prefix: "own"}, redistest.Server{Client: in.Client(t), Prefix: "own"}
	enter(t, s, "lost")
	found, failures, stop := watch(t, s)
	defer stop()
	defer close(goOn)
	next(t, found, "lost")
	listening(t, s)
	hangs.Store(true)
	require.NoError(t, others.Client.SRem(ctx, queue.Registry(s.Prefix), "lost").Err())
	require.NoError(t, others.Client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()) // which has it read again
	<-began
	for _, name := range []string{"one", "two"} {
		listening(t, others)
		enter(t, others, name)
		next(t, found, name)
	}
	require.Empty(t, failures)
}

func TestUnreadableRegistryIsReadAgain(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		require.NoError(t, s.Client.Set(ctx, queue.Registry(s.Prefix), "not a set", 0).Err())
		found, failures, _ := watch(t, s)
		select {
		case err := <-failures:
			require.ErrorContains(t, err, "WRONGTYPE")
		case <-time.After(patience):
			require.Fail(t, "nothing was said")
		}
		_, err := s.Client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, queue.Registry(s.Prefix))
			p.SAdd(ctx, queue.Registry(s.Prefix), "unannounced")
			return nil
		})
		require.NoError(t, err)
		next(t, found, "unannounced")
	})
}

func TestWatchOfAClosedClientIsQuietAndEnds(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	enter(t, s, "topic")
	found, failures, stop := watch(t, s)
	next(t, found, "topic")
	require.NoError(t, client.Close())
	select {
	case err := <-failures:
		require.True(t, errors.Is(err, redis.ErrClosed), err)
	case <-time.After(50 * time.Millisecond): // the registry is read rarely
	}
	stop()
	require.LessOrEqual(t, len(failures), 3, "it does not spin")
}

func TestWatchThatIsConnectingAgainEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	u := newUnanswered(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Dialer: u.dial, DialTimeout: time.Hour})
	t.Cleanup(func() { _ = client.Close() })
	s := redistest.Server{Client: client, Prefix: "own"}
	enter(t, redistest.Server{Client: server.Client(t), Prefix: "own"}, "topic")
	found, _, stop := watch(t, s)
	next(t, found, "topic")
	u.now.Store(true)
	require.EqualValues(t, 1, server.Client(t).ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
	<-u.asked
	stop()
}

func TestWatchTopicsSaysThatItMayNotListen(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: userWithout(t, redistest.Start(t).Client(t), "-subscribe"), Prefix: "own"}
	_, failures, _ := watch(t, s)
	err := <-failures
	require.ErrorIs(t, err, refusal.ErrForbidden)
	require.ErrorContains(t, err, "own:new-topics:*")
}

// It is not asked for every second then.
func TestWatchTopicsThatMayNotReadTheRegistryIsForbidden(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: userWithout(t, redistest.Start(t).Client(t), "-sscan"), Prefix: "own"}
	_, failures, _ := watch(t, s)
	require.ErrorIs(t, <-failures, refusal.ErrForbidden)
}
