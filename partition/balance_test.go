package partition_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func TestMovesAreTheFewest(t *testing.T) {
	t.Parallel()
	all := func(name string, n int) []string { return slices.Repeat([]string{name}, n) }
	require.Len(t, partition.Moves(all("a", 12), all("b", 12), "a"), 6)
	require.Empty(t, partition.Moves(all("a", 12), all("b", 12), "b"))
	require.Empty(t, partition.Moves(all("a", 12), all("", 12), "a"), "nobody stands by")
	require.Empty(t, partition.Moves(all("a", 12), all("a", 12), "a"))
	two := append(all("a", 6), all("b", 6)...)
	require.Equal(t, []int{0, 1}, partition.Moves(two, all("c", 12), "a"))
	require.Equal(t, []int{6, 7}, partition.Moves(two, all("c", 12), "b"))
	require.Equal(t, []int{6, 7}, partition.Moves(two, append(all("b", 6), all("c", 6)...), "b"), "b is first, but c has fewer")
	require.Equal(t, []int{5}, partition.Moves(two, append(all("b", 5), append(all("c", 1), all("a", 6)...)...), "a"))
	require.Empty(t, partition.Moves([]string{"a", "a", "b"}, all("b", 3), "a"), "one more is no surplus")
	require.Len(t, partition.Moves(append(all("a", 11), ""), all("b", 12), "a"), 5, "b is about to get one")
	require.Empty(t, partition.Moves(append(all("a", 2), ""), all("b", 3), "a"), "b is about to get one")
	require.Len(t, partition.Moves(append(all("a", 2), ""), append(all("b", 2), ""), "a"), 1, "a partition that is paused")
	require.Empty(t, partition.Moves(all("", 2), all("", 2), "a"))
}

// TestMovesEnd is about any members that look in any order, while the order of those that stand by
// is any: each move makes the counts more even, and at rest they differ by one at most.
func TestMovesEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.IntRange(1, 6).Draw(t, "members")
		owners := make([]string, rapid.IntRange(1, 24).Draw(t, "partitions"))
		name := func(i int) string { return strconv.Itoa(i) }
		count := map[string]int{}
		for i := range owners {
			owners[i] = name(rapid.IntRange(0, members-1).Draw(t, "owner"))
			count[owners[i]]++
		}
		squares := func() (sum int) {
			for _, n := range count {
				sum += n * n
			}
			return sum
		}
		spread := func() int {
			least, most := len(owners), 0
			for i := range members {
				least, most = min(least, count[name(i)]), max(most, count[name(i)])
			}
			return most - least
		}
		nexts := make([]string, len(owners))
		given := 0
		for look := 0; look < 40 || spread() > 1 && look < 4000; look++ {
			me := name(look % members)
			for i, owner := range owners {
				nexts[i] = ""
				if next := name((look/members + i) % members); next != owner { // polls change the order
					nexts[i] = next
				}
			}
			for _, i := range partition.Moves(owners, nexts, me) {
				before := squares()
				require.Equal(t, me, owners[i])
				count[me]--
				owners[i] = nexts[i]
				count[owners[i]]++
				given++
				require.Less(t, squares(), before)
			}
		}
		require.LessOrEqual(t, spread(), 1)
		require.LessOrEqual(t, given, len(owners))
	})
}

// inTurns is a setting for messages of a partition one after the other, in any process.
func inTurns(c *partition.SubscriberConfig) {
	c.PartitionMaxInFlight = 1
	c.Subscriber.MaxInFlight = c.Partitions
	c.Subscriber.SingleActive = true
	c.Subscriber.MaxDeliveries = -1
	c.Subscriber.Backoff = func(int) time.Duration { return 0 }
}

// process returns the server as another process sees it.
func process(t testing.TB, s redistest.Server) redistest.Server {
	t.Helper()
	options := *s.Client.(*redis.Client).Options()
	options.PushNotificationProcessor = nil // each client has one of its own
	client := redis.NewClient(&options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s.Client = client
	return s
}

// seats returns the active subscription of each partition.
func seats(t testing.TB, s redistest.Server, n int) []string {
	t.Helper()
	client, err := queue.NewClient(s.Client)
	require.NoError(t, err)
	found, err := queue.Seats(context.Background(), client, s.Prefix, "default", topics(t, topic, n))
	require.NoError(t, err)
	owners := make([]string, n)
	for i, seat := range found {
		owners[i] = seat.Owner
	}
	return owners
}

// shares returns how many partitions each member has, the fewest first, and 0 first while a
// partition has no owner.
func shares(t testing.TB, s redistest.Server, n int) (counts []int) {
	t.Helper()
	of := map[string]int{}
	for _, owner := range seats(t, s, n) {
		if owner == "" {
			return []int{0}
		}
		of[owner[:8]]++
	}
	for _, count := range of {
		counts = append(counts, count)
	}
	slices.Sort(counts)
	return counts
}

// awaitShares has all look until they have so many partitions.
func awaitShares(t testing.TB, s redistest.Server, n int, want []int, subs ...*partition.Subscriber) {
	t.Helper()
	var last []int
	testkit.Eventually(t, func() bool {
		for _, sub := range subs {
			sub.Look(topic)
		}
		last = shares(t, s, n)
		return slices.Equal(last, want)
	}, fmt.Sprint("partitions of each member: ", want))
	for range 3 {
		before := seats(t, s, n)
		for _, sub := range subs {
			sub.Look(topic)
		}
		require.Equal(t, before, seats(t, s, n), "it stays so")
	}
}

// TestActivePartitionsSpreadOverProcesses is about members that come and go under load: no message
// is lost or out of order, and nobody's handler is cut short.
func TestActivePartitionsSpreadOverProcesses(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		testkit.Drained(t, s)
		const n, keys, each = 6, 12, 60
		p := newPublisher(t, s, n)
		var mu sync.Mutex
		next, nacked, faults := map[string]int{}, map[string]bool{}, []string{}
		handled := 0
		done := make(chan struct{})
		start := func() *partition.Subscriber {
			sub := newSubscriber(t, process(t, s), n, inTurns)
			messages := testkit.SubscribeTo(t, sub, topic)
			go func() {
				for msg := range messages {
					go func() {
						mu.Lock()
						defer mu.Unlock()
						key, text := msg.Metadata[partition.KeyMetadata], string(msg.Payload)
						if i, _ := strconv.Atoi(text); i%7 == 3 && !nacked[key+text] {
							nacked[key+text] = true // it comes again, before later ones
							msg.Nack()
							return
						}
						if text != strconv.Itoa(next[key]) {
							faults = append(faults, fmt.Sprint(key, " got ", text, ", not ", next[key]))
						}
						next[key]++
						if handled++; handled == keys*each {
							close(done)
						}
						msg.Ack()
					}()
				}
			}()
			return sub
		}
		published := 0
		publish := func(upTo int) {
			for ; published < upTo; published++ {
				for k := range keys {
					require.NoError(t, p.Publish(topic, newMessage(strconv.Itoa(published), fmt.Sprint("key", k))))
				}
			}
		}
		one := start()
		publish(each / 3)
		awaitShares(t, s, n, []int{6}, one)
		two := start()
		awaitShares(t, s, n, []int{3, 3}, one, two)
		publish(2 * each / 3)
		three := start()
		awaitShares(t, s, n, []int{2, 2, 2}, one, two, three)
		require.NoError(t, one.Close())
		publish(each)
		awaitShares(t, s, n, []int{3, 3}, two, three)
		testkit.Wait(t, done, "all messages")
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, faults)
	})
}

// TestAHandlerAtWorkFinishesBeforeItsPartitionMoves is about a handler that runs for longer than
// CloseTimeout.
func TestAHandlerAtWorkFinishesBeforeItsPartitionMoves(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		testkit.Drained(t, s)
		const n = 2
		p := newPublisher(t, s, n)
		soon := func(c *partition.SubscriberConfig) { c.Subscriber.CloseTimeout = time.Millisecond }
		one := newSubscriber(t, process(t, s), n, inTurns, soon)
		first := testkit.SubscribeTo(t, one, topic)
		awaitShares(t, s, n, []int{2}, one)
		for range 2 {
			require.NoError(t, p.Publish(topic, messagesForAll(t, n)...))
		}
		a, b := testkit.Receive(t, first), testkit.Receive(t, first)
		two := newSubscriber(t, process(t, s), n, inTurns)
		second := testkit.SubscribeTo(t, two, topic)
		testkit.Eventually(t, func() bool {
			one.Look(topic)
			return one.Look(topic) == 1
		}, "it gives a partition up")
		for range 3 {
			one.Look(topic)
			two.Look(topic)
		}
		require.Equal(t, 1, one.Look(topic), "and keeps the other one")
		time.Sleep(20 * time.Millisecond) // many times CloseTimeout
		require.NoError(t, a.Context().Err())
		require.NoError(t, b.Context().Err())
		require.Equal(t, []int{2}, shares(t, s, n))
		a.Ack()
		b.Ack()
		testkit.Receive(t, second).Ack() // of the one that moved
		testkit.Receive(t, first).Ack()
		awaitShares(t, s, n, []int{1, 1}, one, two)
	})
}

// TestMembersLookByThemselves is about members that nobody has look. What one gave up comes back
// when the other ends.
func TestMembersLookByThemselves(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 4
		is := func(want ...int) {
			t.Helper()
			testkit.Eventually(t, func() bool { return slices.Equal(shares(t, s, n), want) }, fmt.Sprint(want))
		}
		start := func() *partition.Subscriber {
			sub := newSubscriber(t, process(t, s), n, inTurns)
			sub.LookEvery(10 * time.Millisecond)
			testkit.SubscribeTo(t, sub, topic)
			return sub
		}
		start()
		is(4)
		two := start()
		is(2, 2)
		require.NoError(t, two.Close())
		is(4)
	})
}

func TestActivePartitionsSpreadOverProcessesOnACluster(t *testing.T) {
	t.Parallel()
	const n = 6
	c := redistest.StartCluster(t)
	start := func() *partition.Subscriber {
		sub := newSubscriber(t, redistest.On(t, c.Client(t), "redisdelay"), n, inTurns)
		testkit.SubscribeTo(t, sub, topic)
		return sub
	}
	s := redistest.On(t, c.Client(t), "redisdelay")
	one := start()
	awaitShares(t, s, n, []int{6}, one)
	two := start()
	awaitShares(t, s, n, []int{3, 3}, one, two)
	require.NoError(t, one.Close())
	awaitShares(t, s, n, []int{6}, two)
}

func TestSpreadingNeedsTheCommandsThatItSends(t *testing.T) {
	t.Parallel()
	operator := redistest.Start(t).Client(t)
	require.NoError(t, operator.Do(context.Background(), "ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-hgetall").Err())
	options := *operator.(*redis.Client).Options()
	options.Username, options.Password, options.PushNotificationProcessor = "user", "secret", nil
	user := redis.NewClient(&options)
	t.Cleanup(func() { require.NoError(t, user.Close()) })
	s := redistest.On(t, user, "redisdelay")
	_, err := newSubscriber(t, s, 2, inTurns).Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, redisdelay.ErrForbidden)
	require.ErrorContains(t, err, "hgetall")
	_, err = newSubscriber(t, s, 2).Subscribe(t.Context(), topic)
	require.NoError(t, err, "nothing is to be spread")
}
