package partition_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func limited(limit redisdelay.Limit, burst, atOnce int) func(*partition.SubscriberConfig) {
	return func(c *partition.SubscriberConfig) {
		c.Subscriber.Limit, c.Subscriber.Burst, c.Subscriber.AtOnce = limit, burst, atOnce
	}
}

// optionsIn returns the options of the default group in each of the first n partitions.
func optionsIn(t testing.TB, s redistest.Server, n int) (all []queue.GroupOptions) {
	t.Helper()
	client, err := servers.NewClient(s.Client)
	require.NoError(t, err)
	for _, name := range topics(t, topic, n) {
		options, err := queue.NewTopic(client, s.Prefix, name).OptionsOf(context.Background(), redisdelay.DefaultConsumerGroup)
		require.NoError(t, err)
		all = append(all, options)
	}
	return all
}

// requireShares checks the limit of each of the first n partitions.
func requireShares(t testing.TB, s redistest.Server, n int, want queue.GroupLimit) {
	t.Helper()
	for i, options := range optionsIn(t, s, n) {
		require.Equal(t, want, options.Effective(), "partition %d", i)
	}
}

func operator(t testing.TB, s redistest.Server) *admin.Admin {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return a
}

// setLimit sets the limit of the default group in each of n partitions, as an operator does.
func setLimit(t testing.TB, s redistest.Server, n int, limit queue.GroupLimit) {
	t.Helper()
	client, err := servers.NewClient(s.Client)
	require.NoError(t, err)
	for _, name := range topics(t, topic, n) {
		call := queue.NewTopic(client, s.Prefix, name).LimitCall(redisdelay.DefaultConsumerGroup, &limit)
		require.NoError(t, queue.Do(context.Background(), client, call))
	}
}

func TestEachPartitionGetsAShareOfTheLimit(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		sub := newSubscriber(t, s, 4, limited(100, 10, 6))
		require.NoError(t, sub.SubscribeInitialize(topic))
		requireShares(t, s, 4, queue.GroupLimit{Rate: 25, Burst: 2, AtOnce: 1})
		sub = newSubscriber(t, s, 4, limited(10, 0, 0))
		testkit.SubscribeTo(t, sub, topic)
		requireShares(t, s, 4, queue.GroupLimit{Rate: 2.5, Burst: 1})
		testkit.SubscribeTo(t, newSubscriber(t, s, 4), topic)
		requireShares(t, s, 4, queue.GroupLimit{})
	})
}

func TestALimitOfLessThanOneForEachPartitionIsRefused(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		for name, change := range map[string]func(*partition.SubscriberConfig){
			"Subscriber.Burst is 3; each of 4":  limited(100, 3, 0),
			"Subscriber.AtOnce is 2; each of 4": limited(0, 0, 2),
		} {
			sub := newSubscriber(t, s, 4, change)
			_, err := sub.Subscribe(context.Background(), topic)
			require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
			require.ErrorContains(t, err, name)
			require.ErrorIs(t, sub.SubscribeInitialize(topic), redisdelay.ErrInvalidConfig)
		}
		require.Zero(t, s.Client.Exists(context.Background(), s.Prefix+":topics").Val(), "nothing was made")
	})
}

// reads waits until somebody reads each of the first n partitions.
func reads(t testing.TB, s redistest.Server, n int) {
	t.Helper()
	client, err := servers.NewClient(s.Client)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool {
		read, err := queue.Read(context.Background(), client, s.Prefix, redisdelay.DefaultConsumerGroup, topics(t, topic, n))
		require.NoError(t, err)
		return !slices.Contains(read, false)
	}, "nobody reads a partition")
}

// A subscriber with fewer partitions than the topic has does not raise the shares.
func TestAHigherNumberOfPartitionsCountsForTheShares(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		more := newSubscriber(t, s, 4, limited(100, 8, 0))
		testkit.SubscribeTo(t, more, topic)
		reads(t, s, 4)
		testkit.SubscribeTo(t, newSubscriber(t, s, 2, limited(100, 8, 0)), topic)
		requireShares(t, s, 4, queue.GroupLimit{Rate: 25, Burst: 2})
		require.NoError(t, more.Close())
		set(t, s, 2, 0, 8)
		testkit.SubscribeTo(t, newSubscriber(t, s, 2, limited(100, 8, 0)), topic)
		requireShares(t, s, 2, queue.GroupLimit{Rate: 12.5, Burst: 1})
		set(t, s, 2, 0, 0)
		testkit.SubscribeTo(t, newSubscriber(t, s, 2, limited(100, 8, 0)), topic)
		requireShares(t, s, 2, queue.GroupLimit{Rate: 50, Burst: 4})
	})
}

// shareWatch watches the limits of all partitions while their number changes.
type shareWatch struct {
	s       redistest.Server
	names   []string
	looks   *redis.Client // without the hook
	mu      sync.Mutex
	most    queue.GroupLimit // the highest sums
	looked  int
	missing bool // a partition that is read has no limit
}

// watchShares gives the server a client of its own, and adds up the limits of the first n
// partitions after each call or pipeline of that. A partition counts when somebody reads it.
func watchShares(t testing.TB, s *redistest.Server, n int) *shareWatch {
	t.Helper()
	known := s.Client.(*redis.Client).Options() // it has what a client keeps for itself, too
	fresh := func() *redis.Client {
		return redis.NewClient(&redis.Options{Addr: known.Addr, DB: known.DB, ReadTimeout: known.ReadTimeout})
	}
	w := &shareWatch{s: *s, names: topics(t, topic, n), looks: fresh()}
	client := fresh()
	client.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		err := next()
		w.look() // once for a pipeline, which may have hundreds of calls
		return err
	}))
	s.Client = client
	t.Cleanup(func() { _, _ = client.Close(), w.looks.Close() })
	return w
}

// begin forgets what was seen before.
func (w *shareWatch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most, w.looked, w.missing = queue.GroupLimit{}, 0, false
}

func (w *shareWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx := context.Background()
	var sum queue.GroupLimit
	var texts []*redis.StringCmd
	var waiters []*redis.IntCmd
	_, _ = w.looks.TxPipelined(ctx, func(tx redis.Pipeliner) error { // all of one moment
		for _, name := range w.names {
			base := w.s.Prefix + ":{" + name + "}:"
			texts = append(texts, tx.HGet(ctx, base+"groups", redisdelay.DefaultConsumerGroup))
			waiters = append(waiters, tx.ZCard(ctx, base+"waiters:"+redisdelay.DefaultConsumerGroup))
		}
		return nil
	})
	for i, text := range texts {
		if text.Err() != nil || waiters[i].Val() == 0 {
			continue
		}
		limit := queue.ParseGroupOptions(text.Val()).Effective()
		w.missing = w.missing || limit.Rate == 0
		sum.Rate, sum.Burst, sum.AtOnce = sum.Rate+limit.Rate, sum.Burst+limit.Burst, sum.AtOnce+limit.AtOnce
	}
	w.looked++
	w.most.Rate, w.most.Burst, w.most.AtOnce = max(w.most.Rate, sum.Rate), max(w.most.Burst, sum.Burst), max(w.most.AtOnce, sum.AtOnce)
}

func (w *shareWatch) require(t testing.TB, most queue.GroupLimit) {
	t.Helper()
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Greater(t, w.looked, 1)
	require.False(t, w.missing, "a partition is read without a limit")
	require.Equal(t, most, w.most)
}

// The shares of two subscribers, which follow the number of partitions at different times, never
// add up to more than the limit.
func TestTheSharesNeverAddUpToMoreThanTheLimit(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		asks := s // what the test asks is not watched
		w := watchShares(t, &s, 4)
		set(t, s, 2, 0, 0)
		first, second := newSubscriber(t, s, 0, limited(40, 8, 12)), newSubscriber(t, s, 0, limited(40, 8, 12))
		first.Follow(20 * time.Millisecond)
		second.Follow(50 * time.Millisecond)
		testkit.SubscribeTo(t, first, topic)
		testkit.SubscribeTo(t, second, topic)
		requireShares(t, asks, 2, queue.GroupLimit{Rate: 20, Burst: 4, AtOnce: 6})
		reads(t, asks, 2)

		comes := func(n int, want queue.GroupLimit) {
			testkit.Eventually(t, func() bool {
				for _, options := range optionsIn(t, asks, n) {
					if options.Limit != want {
						return false
					}
				}
				return true
			}, "the shares do not change")
		}
		set(t, s, 2, 0, 4)
		comes(4, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 3})
		reads(t, asks, 4)
		set(t, s, 2, 0, 0)
		comes(2, queue.GroupLimit{Rate: 20, Burst: 4, AtOnce: 6})
		testkit.Eventually(t, func() bool { return first.Shares() == 2 && second.Shares() == 2 }, "one has not heard that the number is lower")
		set(t, s, 2, 0, 4)
		comes(4, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 3})
		reads(t, asks, 4)
		w.require(t, queue.GroupLimit{Rate: 40, Burst: 8, AtOnce: 12})
	})
}

// A share that was raised for fewer partitions is lowered at once if there are more by then.
func TestASharesRaiseIsTakenBackIfTheNumberHasGrown(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		asks := s
		known := s.Client.(*redis.Client).Options()
		client := redis.NewClient(&redis.Options{Addr: known.Addr, DB: known.DB, ReadTimeout: known.ReadTimeout})
		t.Cleanup(func() { _ = client.Close() })
		var armed atomic.Bool
		first := "{" + topics(t, topic, 1)[0] + "}"
		client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
			for _, call := range calls {
				if call.Name() == "evalsha" && strings.Contains(fmt.Sprint(call.Args()...), first) && armed.CompareAndSwap(true, false) {
					set(t, asks, 4, 0, 0) // just before the group is registered with its larger share
				}
			}
			return next()
		}))
		s.Client = client
		set(t, s, 4, 0, 0)
		sub := newSubscriber(t, s, 0, limited(40, 8, 12))
		sub.Follow(time.Hour)
		testkit.SubscribeTo(t, sub, topic)
		require.Equal(t, 4, sub.Shares())
		set(t, asks, 2, 0, 0)
		armed.Store(true)
		require.Equal(t, 4, sub.FollowNow())
		require.False(t, armed.Load())
		requireShares(t, asks, 4, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 3})
	})
}

// The limit that an operator has set is shared anew when the number of partitions changes.
func TestALimitThatAnOperatorSetIsSharedAnew(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		w := watchShares(t, &s, 4)
		ctx, a := context.Background(), operator(t, s)
		set(t, s, 2, 0, 0)
		sub := newSubscriber(t, s, 0, limited(1000, 100, 100))
		sub.Follow(5 * time.Millisecond)
		testkit.SubscribeTo(t, sub, topic)
		setLimit(t, s, 2, queue.GroupLimit{Rate: 20, Burst: 5, AtOnce: 6})
		w.begin()

		p, err := a.SetPartitions(ctx, topic, 4)
		require.NoError(t, err)
		require.Equal(t, 4, p.Next)
		requireShares(t, s, 2, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 3})
		testkit.Eventually(t, func() bool {
			p, err = a.SetPartitions(ctx, topic, 0)
			require.NoError(t, err)
			return len(p.Left) == 0
		}, "the new partitions are not read")
		requireShares(t, s, 4, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 3})
		w.require(t, queue.GroupLimit{Rate: 40, Burst: 10, AtOnce: 12})

		_, err = a.SetPartitions(ctx, topic, 2)
		require.NoError(t, err, "called off")
		requireShares(t, s, 2, queue.GroupLimit{Rate: 20, Burst: 4, AtOnce: 6})
		_, err = a.SetPartitions(ctx, topic, 9)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, "a burst of 8 is less than one message for each of 9 partitions")
		requireShares(t, s, 2, queue.GroupLimit{Rate: 20, Burst: 4, AtOnce: 6})
		p, err = a.SetPartitions(ctx, topic, 0)
		require.NoError(t, err)
		require.True(t, p.Done())
	})
}

// A limit of an operator is divided by SetPartitions only. Without that, more partitions would make
// it larger.
func TestMorePartitionsThanSharesAreRefused(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		a := operator(t, s)
		testkit.SubscribeTo(t, newSubscriber(t, s, 2), topic)
		reads(t, s, 2)
		_, err := a.SetLimit(context.Background(), topic, "", admin.Limit{Rate: 20, Burst: 4, AtOnce: 8})
		require.NoError(t, err)
		_, err = newSubscriber(t, s, 4).Subscribe(context.Background(), topic)
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
		require.ErrorContains(t, err, "Partitions is 4, but 2 partitions share a limit")
		require.ErrorIs(t, newSubscriber(t, s, 4).SubscribeInitialize(topic), redisdelay.ErrInvalidConfig)
		requireShares(t, s, 2, queue.GroupLimit{Rate: 10, Burst: 2, AtOnce: 4})

		_, err = a.SetLimit(context.Background(), topic, "", admin.Limit{}) // lifted
		require.NoError(t, err)
		testkit.SubscribeTo(t, newSubscriber(t, s, 3), topic)
		reads(t, s, 3)
		_, err = a.SetLimit(context.Background(), topic, "", admin.Limit{Rate: 24, Burst: 12, AtOnce: 12})
		require.NoError(t, err)
		_, err = a.SetPartitions(context.Background(), topic, 4)
		require.NoError(t, err)
		testkit.SubscribeTo(t, newSubscriber(t, s, 4), topic)
		reads(t, s, 4)
		requireShares(t, s, 4, queue.GroupLimit{Rate: 6, Burst: 3, AtOnce: 3})
	})
}
