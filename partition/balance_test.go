package partition_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
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
	client, err := servers.NewClient(s.Client)
	require.NoError(t, err)
	found, err := queue.Seats(context.Background(), client, s.Prefix, "default", topics(t, topic, n))
	require.NoError(t, err)
	owners := make([]string, n)
	for i, seat := range found {
		owners[i] = seat.Owner
	}
	return owners
}

// shares returns how many partitions each member has, the fewest first, without those that have no
// owner.
func shares(t testing.TB, s redistest.Server, n int) (counts []int) {
	t.Helper()
	of := map[string]int{}
	for _, owner := range seats(t, s, n) {
		if owner != "" {
			of[owner[:8]]++
		}
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
		leaving := 0
		for _, sub := range subs {
			leaving += sub.Look(topic)
		}
		last = shares(t, s, n)
		return leaving == 0 && slices.Equal(last, want)
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
		testkit.Drained(t, s, queuetest.Live()) // the first one hardly waits for Redis when it closes
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

// TestAPausedPartitionDoesNotStopTheSpreading is about one that has no owner, as nobody may claim.
func TestAPausedPartitionDoesNotStopTheSpreading(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 5
		ctx := context.Background()
		require.NoError(t, newPublisher(t, s, n).Publish(topic, messagesForAll(t, n)...))
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		paused := topics(t, topic, n)[0]
		_, err = a.Pause(ctx, paused, admin.PauseOptions{})
		require.NoError(t, err)
		one := newSubscriber(t, process(t, s), n, inTurns)
		first := testkit.SubscribeTo(t, one, topic)
		testkit.Consume(t, first, n-1)
		two := newSubscriber(t, process(t, s), n, inTurns)
		second := testkit.SubscribeTo(t, two, topic)
		testkit.Eventually(t, func() bool {
			one.Look(topic)
			two.Look(topic)
			return slices.Equal(shares(t, s, n), []int{2, 2})
		}, "the others spread")
		_, err = a.Resume(ctx, paused, admin.ResumeOptions{})
		require.NoError(t, err)
		select {
		case msg := <-first:
			msg.Ack()
		case msg := <-second:
			msg.Ack()
		case <-time.After(testkit.Soon):
			require.Fail(t, "nobody got the message of the partition that was paused")
		}
		awaitShares(t, s, n, []int{2, 3}, one, two)
	})
}

// far is a hook of a client whose commands take so many nanoseconds longer to reach Redis.
type far struct{ atomic.Int64 }

func (f *far) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *far) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(f.Load()))
		return next(ctx, cmd)
	}
}

func (f *far) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(f.Load()))
		return next(ctx, cmds)
	}
}

// TestAMemberFarFromRedisGetsItsPartitions is about one that claims later than another could that
// has just given a partition up.
func TestAMemberFarFromRedisGetsItsPartitions(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 4
		one := newSubscriber(t, process(t, s), n, inTurns)
		testkit.SubscribeTo(t, one, topic)
		awaitShares(t, s, n, []int{4}, one)
		slow, delay := process(t, s), new(far)
		delay.Store(int64(50 * time.Millisecond))
		slow.Client.AddHook(delay)
		two := newSubscriber(t, slow, n, inTurns)
		testkit.SubscribeTo(t, two, topic)
		awaitShares(t, s, n, []int{2, 2}, one, two)
	})
}

// stopped is a hook of a client whose commands wait, as those of a process under SIGSTOP. Its
// connection to the mailbox stays.
type stopped struct {
	is   atomic.Bool
	goOn chan struct{}
}

func (s *stopped) wait() {
	if s.is.Load() {
		<-s.goOn
	}
}

func (s *stopped) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stopped) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.wait()
		return next(ctx, cmd)
	}
}

func (s *stopped) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.wait()
		return next(ctx, cmds)
	}
}

// oneThatStandsBy waits until a member stands by for each of n partitions, and stops it then.
func (s *stopped) oneThatStandsBy(t *testing.T, server redistest.Server, n int) {
	t.Helper()
	client, err := servers.NewClient(server.Client)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool {
		found, err := queue.Seats(context.Background(), client, server.Prefix, "default", topics(t, topic, n))
		return err == nil && !slices.ContainsFunc(found, func(seat queue.Seat) bool { return seat.Next == "" })
	}, "the other one stands by")
	s.is.Store(true)
	t.Cleanup(func() { s.is.Store(false); close(s.goOn) })
}

// A process that stands still does not take what it is given. It is not given more at each look.
func TestAMemberThatTakesNothingIsPassedOver(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 6
		one := newSubscriber(t, process(t, s), n, inTurns)
		one.LookEvery(time.Hour)
		testkit.SubscribeTo(t, one, topic)
		awaitShares(t, s, n, []int{n}, one)
		still, stop := process(t, s), &stopped{goOn: make(chan struct{})}
		still.Client.AddHook(stop)
		two := newSubscriber(t, still, n, inTurns)
		two.LookEvery(time.Hour)
		testkit.SubscribeTo(t, two, topic)
		stop.oneThatStandsBy(t, s, n)
		require.Equal(t, n/2, one.Look(topic))
		testkit.Eventually(t, func() bool { return one.Look(topic) == 0 && slices.Equal(shares(t, s, n), []int{n}) }, "the giver has them again")
		for range 3 {
			require.Zero(t, one.Look(topic), "the other one is passed over")
		}
		stop.is.Store(false)
	})
}

// TestCloseWhileAllThatIsLeftWaitsForAStandby is about a topic that shrinks to the partition that
// was just given up. The standby does not take it.
func TestCloseWhileAllThatIsLeftWaitsForAStandby(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 2
		set(t, s, n, 0, 0)
		follows := func(c *partition.SubscriberConfig) { c.Partitions = 0 }
		one := newSubscriber(t, process(t, s), n, inTurns, follows)
		one.Follow(time.Millisecond)
		one.TakeFor(time.Hour)
		one.LookEvery(time.Hour)
		messages := testkit.SubscribeTo(t, one, topic)
		awaitShares(t, s, n, []int{n}, one)
		before := seats(t, s, n)
		still, stop := process(t, s), &stopped{goOn: make(chan struct{})}
		still.Client.AddHook(stop)
		two := newSubscriber(t, still, n, inTurns, follows)
		two.LookEvery(time.Hour)
		testkit.SubscribeTo(t, two, topic)
		stop.oneThatStandsBy(t, s, n)
		testkit.Eventually(t, func() bool { return one.Look(topic) == 1 && seats(t, s, n)[0] != before[0] }, "it has given partition 0 up")
		set(t, s, 1, 0, 0)
		testkit.Eventually(t, func() bool { return seats(t, s, n)[1] != before[1] }, "it has left partition 1")
		require.NoError(t, one.Close())
		select {
		case _, open := <-messages:
			require.False(t, open)
		default:
			require.Fail(t, "Close has left the channel open")
		}
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
