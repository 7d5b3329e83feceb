package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// patience is for what happens at once, on a machine that is busy.
const patience = 20 * time.Second

// receiver is one receiver of a mailbox.
type receiver struct {
	t       tb
	address string
	stop    func()
	woken   chan string
}

func receive(t tb, m *queue.Mailbox) *receiver {
	r := &receiver{t: t, woken: make(chan string, 1000)}
	r.address, r.stop = m.Receive(func(argument string, _ func()) { r.woken <- argument })
	return r
}

// gets waits for an argument, and passes over calls to look for what was lost.
func (r *receiver) gets(want string) {
	r.t.Helper()
	for {
		select {
		case got := <-r.woken:
			if got == want {
				return
			}
			require.Empty(r.t, got)
		case <-time.After(patience):
			require.Fail(r.t, "not woken", "%s with %q", r.address, want)
		}
	}
}

// connected waits until the mailbox is, and lets pass what comes of that.
func (r *receiver) connected(s redistest.Server) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return s.Client.PubSubNumSub(ctx, r.channel()).Val()[r.channel()] > 0
	}, patience, time.Millisecond)
	post(r.t, s, r.channel(), r.name()+" connected")
	r.gets("connected")
}

func (r *receiver) channel() string { return r.address[:strings.LastIndexByte(r.address, '|')] }
func (r *receiver) name() string    { return r.address[strings.LastIndexByte(r.address, '|')+1:] }

func mailbox(t tb, s redistest.Server) *queue.Mailbox {
	m, closeMailbox := queue.OpenMailbox(queue.MustClient(s.Client), s.Prefix)
	t.Cleanup(closeMailbox)
	return m
}

// post sends to a mailbox's channel.
func post(t tb, s redistest.Server, channel, payload string) {
	t.Helper()
	require.NoError(t, s.Client.Publish(ctx, channel, payload).Err())
}

func TestMailboxWakesTheReceiverThatIsNamed(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := receive(t, m), receive(t, m)
		one.connected(s)
		two.connected(s)
		require.NotEqual(t, one.address, two.address)
		require.Equal(t, one.channel(), two.channel())
		require.True(t, strings.HasPrefix(one.channel(), s.Prefix+":mailbox:"))
		for _, payload := range []string{"nobody", "nobody x", "", " ", one.name() + "0 x", one.name() + " first",
			one.name() + " of several words", one.name(), two.name() + " second"} {
			post(t, s, one.channel(), payload)
		}
		two.gets("second")
		require.Equal(t, "first", <-one.woken)
		require.Equal(t, "of several words", <-one.woken)
		require.Equal(t, "", <-one.woken)
		require.Empty(t, one.woken)
	})
}

func TestMailboxWakesAllForAStar(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := receive(t, m), receive(t, m)
		one.connected(s)
		two.connected(s)
		post(t, s, one.channel(), "*")
		one.gets("")
		two.gets("")
	})
}

func TestLossOfDataWakesAllReceiversOnce(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := receive(t, m), receive(t, m)
		one.connected(s)
		two.connected(s)
		began := time.Now()
		for range 3 { // each of the process's subscriptions finds its group gone
			m.DataLost()
		}
		one.gets("")
		two.gets("")
		if time.Since(began) < time.Second {
			require.Empty(t, one.woken)
		}
		require.Eventually(t, func() bool { m.DataLost(); return len(two.woken) > 0 }, patience, 10*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(began), time.Second)
	})
}

func TestReceiverThatStoppedIsNotWoken(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := receive(t, m), receive(t, m)
		one.connected(s)
		two.connected(s)
		one.stop()
		one.stop()
		post(t, s, one.channel(), one.name())
		post(t, s, one.channel(), "*")
		post(t, s, one.channel(), two.name()+" end")
		two.gets("end")
		require.Empty(t, one.woken)
		three := receive(t, m)
		require.NotEqual(t, one.address, three.address, "an address is not used again")
	})
}

func TestProcessHasOneMailboxForAClientAndPrefix(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		first, closeFirst := queue.OpenMailbox(queue.MustClient(s.Client), s.Prefix)
		second, closeSecond := queue.OpenMailbox(queue.MustClient(s.Client), s.Prefix)
		require.Same(t, first, second)
		other, closeOther := queue.OpenMailbox(queue.MustClient(s.Client), s.Prefix+"2")
		defer closeOther()
		require.NotSame(t, first, other)

		r := receive(t, second)
		r.connected(s)
		subscribers := func() int64 { return s.Client.PubSubNumSub(ctx, r.channel()).Val()[r.channel()] }
		require.EqualValues(t, 1, subscribers())
		closeFirst()
		closeFirst() // is the same user's
		post(t, s, r.channel(), r.name()+" still open")
		r.gets("still open")
		closeSecond()
		require.Eventually(t, func() bool { return subscribers() == 0 }, patience, time.Millisecond)

		third, closeThird := queue.OpenMailbox(queue.MustClient(s.Client), s.Prefix)
		defer closeThird()
		require.NotSame(t, first, third)
		receive(t, third).connected(s)
	})
}

// odd is a client that cannot be a key of a map.
type odd struct {
	*redis.Client
	_ []int
}

// with is a client that can be a key of a map or not: that depends on what it is with.
type with struct {
	*redis.Client
	value any
}

func TestMailboxOfAClientThatCannotBeCompared(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client.(*redis.Client)
		for _, s.Client = range []redis.UniversalClient{odd{Client: client}, with{client, []int{}}} {
			m := mailbox(t, s)
			require.NotSame(t, m, mailbox(t, s))
			receive(t, m).connected(s)
		}
		s.Client = with{client, 1}
		require.Same(t, mailbox(t, s), mailbox(t, s))
	})
}

func TestMailboxWakesAllWhenItConnectsAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	m := mailbox(t, s)
	one, two := receive(t, m), receive(t, m)
	one.connected(s)
	two.connected(s)
	for range 3 {
		require.EqualValues(t, 1, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
		one.gets("")
		two.gets("")
	}
	post(t, s, one.channel(), one.name()+" x")
	one.gets("x")
}

func TestMailboxOfAServerThatComesUpLater(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	in.Kill()
	s := redistest.Server{Client: in.Client(t), Prefix: "own"}
	m := mailbox(t, s)
	r := receive(t, m)
	require.NoError(t, m.Permitted(ctx), "nobody knows")
	in.Restart()
	r.gets("")
	post(t, s, r.channel(), r.name()+" x")
	r.gets("x")
}

// unanswered is a network on which connections can be made, or nobody answers, until the end of the test.
type unanswered struct {
	now    atomic.Bool
	asked  chan struct{} // that nobody has answered
	answer chan struct{}
}

func newUnanswered(t *testing.T) *unanswered {
	u := &unanswered{asked: make(chan struct{}, 1000), answer: make(chan struct{})}
	t.Cleanup(func() { close(u.answer) })
	return u
}

func (u *unanswered) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	if u.now.Load() {
		u.asked <- struct{}{}
		select {
		case <-ctx.Done():
		case <-u.answer:
		}
		return nil, errors.New("nobody answers")
	}
	return (&net.Dialer{}).DialContext(ctx, kind, addr)
}

func TestMailboxThatIsConnectingCanBeClosed(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(u *unanswered) redis.UniversalClient{
		"server": func(u *unanswered) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: "server:6379", Dialer: u.dial, DialTimeout: time.Hour})
		},
		"cluster": func(u *unanswered) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"server:6379"}, Dialer: u.dial, DialTimeout: time.Hour})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnanswered(t)
			u.now.Store(true)
			client := client(u)
			t.Cleanup(func() { _ = client.Close() })
			_, closeMailbox := queue.OpenMailbox(queue.MustClient(client), "own")
			<-u.asked
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				closeMailbox()
			}()
			select {
			case <-closed:
			case <-time.After(patience):
				require.Fail(t, "it does not end")
			}
		})
	}
}

func TestWatchThatIsConnectingAgainEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	u := newUnanswered(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Dialer: u.dial, DialTimeout: time.Hour})
	t.Cleanup(func() { _ = client.Close() })
	s := redistest.Server{Client: client, Prefix: "own"}
	newWorld(t, redistest.Server{Client: server.Client(t), Prefix: "own"}, "topic", "a")
	found, _, stop := watch(t, s)
	next(t, found, "topic")
	u.now.Store(true)
	require.EqualValues(t, 1, server.Client(t).ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
	<-u.asked
	stop()
}

func TestMailboxOfAClosedClientCanBeClosed(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	_, closeMailbox := queue.OpenMailbox(queue.MustClient(client), "own")
	require.NoError(t, client.Close())
	closeMailbox()
}

// userWithout is a client of a user who may do anything under the prefix "own", but for a rule.
func userWithout(t *testing.T, admin redis.UniversalClient, rule string) *redis.Client {
	t.Helper()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "&own:*", "+@all", rule).Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	t.Cleanup(func() { _ = user.Close() })
	return user
}

// go-redis hides that a SUBSCRIBE was refused, and never repeats it.
func TestAMailboxSaysThatItMayNotListenAndDoesOnceItMay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ without, with string }{{"-subscribe", "+subscribe"}, {"resetchannels", "&own:*"}} {
		admin := redistest.Start(t).Client(t)
		user := userWithout(t, admin, c.without)
		m := mailbox(t, redistest.Server{Client: user, Prefix: "own"})
		r := receive(t, m)
		err := m.Permitted(ctx)
		require.ErrorIs(t, err, queue.ErrForbidden)
		require.ErrorContains(t, err, "+subscribe")
		require.ErrorContains(t, err, "own:mailbox:")
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", c.with).Err())
		r.gets("")
		require.NoError(t, m.Permitted(ctx))
		post(t, redistest.Server{Client: admin, Prefix: "own"}, r.channel(), r.name()+" x")
		r.gets("x")
	}
}

func TestAMailboxOfAClusterSaysThatItMayNotListen(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	require.NoError(t, mailbox(t, redistest.Server{Client: client, Prefix: "allowed"}).Permitted(ctx))
	for _, node := range cluster.Nodes() {
		require.NoError(t, node.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-subscribe").Err())
	}
	err := mailbox(t, redistest.Server{Client: client, Prefix: "own"}).Permitted(ctx)
	require.ErrorIs(t, err, queue.ErrForbidden)
	require.ErrorContains(t, err, "+subscribe")
}

func TestWatchTopicsSaysThatItMayNotListen(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: userWithout(t, redistest.Start(t).Client(t), "-subscribe"), Prefix: "own"}
	_, failures, _ := watch(t, s)
	err := <-failures
	require.ErrorIs(t, err, queue.ErrForbidden)
	require.ErrorContains(t, err, "own:new-topics")
}

// It is not asked for every second then.
func TestWatchTopicsThatMayNotReadTheRegistryIsForbidden(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: userWithout(t, redistest.Start(t).Client(t), "-sscan"), Prefix: "own"}
	_, failures, _ := watch(t, s)
	require.ErrorIs(t, <-failures, queue.ErrForbidden)
}

func TestReceiversPollMoreRarelyTheMoreThereAre(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	m := mailbox(t, redistest.Server{Client: client, Prefix: "own"})
	for n, want := range map[int]time.Duration{1: 5025 * time.Millisecond, 101: 7525 * time.Millisecond,
		2200: time.Minute, 3000: time.Minute} {
		var stops []func()
		for range n {
			_, stop := m.Receive(func(string, func()) {})
			stops = append(stops, stop)
		}
		require.Equal(t, want, m.Poll())
		for _, stop := range stops {
			stop()
		}
	}
	require.Equal(t, 5*time.Second, m.Poll())
}

// Addresses go through scripts, which take them apart.
func TestPublishWakesAReceiverOfAMailbox(t *testing.T) {
	for _, prefix := range []string{"plain", "with|bar", "with space"} {
		t.Run(prefix, func(t *testing.T) {
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				s.Prefix += prefix
				w := newWorld(t, s, "topic", "a")
				m := mailbox(t, s)
				subscriber, scheduler := receive(t, m), receive(t, m)
				subscriber.connected(s)
				scheduler.connected(s)
				require.True(t, w.sub("a").claim(1, idle(1, subscriber.address)).Waits)
				require.Equal(t, queue.Holder, w.promote(scheduler.address).Role)
				w.publish(now("x"), at("y", w.now()+10_000))
				require.Equal(t, "", <-subscriber.woken)
				var ms int
				_, err := fmt.Sscan(<-scheduler.woken, &ms)
				require.NoError(t, err)
				require.Greater(t, ms, 0)
				require.LessOrEqual(t, ms, 10_000)
			})
		})
	}
}

// watch runs WatchTopics until the test ends.
func watch(t *testing.T, s redistest.Server) (found chan string, failures chan error, stop func()) {
	found, failures = make(chan string, 1000), make(chan error, 1000)
	ended := make(chan struct{})
	until, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		queue.WatchTopics(until, queue.MustClient(s.Client), s.Prefix, func(topic string, _ bool) { found <- topic }, func(err error) {
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
		newWorld(t, s, "old", "a")
		found, failures, stop := watch(t, s)
		next(t, found, "old")
		before := time.Now()
		for _, name := range []string{"new", "{new} topic"} {
			newWorld(t, s, name, "a")
			next(t, found, name)
		}
		require.Less(t, time.Since(before), patience)
		stop()
		require.Empty(t, failures)
	})
}

func TestAnnouncementsThatAreNoTopicsAreIgnored(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		newWorld(t, s, "old", "a")
		found, _, stop := watch(t, s)
		require.Eventually(t, func() bool {
			return s.Client.PubSubNumSub(ctx, queue.NewTopics(s.Prefix)).Val()[queue.NewTopics(s.Prefix)] > 0
		}, patience, time.Millisecond)
		post(t, s, queue.NewTopics(s.Prefix), "")
		post(t, s, queue.NewTopics(s.Prefix), strings.Repeat("x", queue.MaxNameLength+1))
		post(t, s, queue.NewTopics(s.Prefix), "end")
		for topic := ""; topic != "end"; {
			select {
			case topic = <-found:
				require.Contains(t, []string{"old", "end"}, topic)
			case <-time.After(patience):
				require.Fail(t, "not found")
			}
		}
		stop()
	})
}

func TestTopicsAreFoundAgainAfterALostConnection(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	newWorld(t, s, "one", "a")
	found, _, _ := watch(t, s)
	next(t, found, "one")
	require.NoError(t, client.SAdd(ctx, queue.Registry(s.Prefix), "unannounced").Err())
	require.NoError(t, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	next(t, found, "unannounced")
}

// In a Cluster the registry is on a node of its own, whose failover may forget what was entered last.
func TestTopicsThatTheRegistryHasLostAreEnteredAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	newWorld(t, s, "lost", "a")
	deleted := newWorld(t, s, "deleted", "a")
	found, _, _ := watch(t, s)
	next(t, found, "lost")
	require.NoError(t, deleted.topic.Erase(ctx))
	require.NoError(t, client.Del(ctx, queue.Registry(s.Prefix)).Err())
	require.NoError(t, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()) // which has it read again
	require.Eventually(t, func() bool {
		return client.SIsMember(ctx, queue.Registry(s.Prefix), "lost").Val()
	}, patience, time.Millisecond)
	require.Equal(t, []string{"lost"}, client.SMembers(ctx, queue.Registry(s.Prefix)).Val(), "not the one that is not there")
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
	newWorld(t, s, "topic", "a")
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

// Who moves a clock waits until all have looked at it.
func TestMailboxSaysWhenAllHaveLooked(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		var looking []func()
		asked := make(chan func(), 9)
		var address string
		for range 2 {
			var stop func()
			address, stop = m.Receive(func(_ string, done func()) {
				if done != nil {
					asked <- done
				}
			})
			defer stop()
		}
		channel := address[:strings.LastIndexByte(address, '|')]
		require.Eventually(t, func() bool { return s.Client.PubSubNumSub(ctx, channel).Val()[channel] > 0 }, patience, time.Millisecond)
		answers := s.Client.Subscribe(ctx, s.Prefix+":looked")
		defer answers.Close()
		_, err := answers.Receive(ctx)
		require.NoError(t, err)
		answered := answers.Channel()

		post(t, s, channel, "* "+s.Prefix+":looked")
		for range 2 {
			looking = append(looking, <-asked)
		}
		looking[0]()
		post(t, s, s.Prefix+":looked", "before the second has looked")
		require.Equal(t, "before the second has looked", (<-answered).Payload)
		looking[1]()
		require.Empty(t, (<-answered).Payload)
	})
}

// wrapped is a client of a Cluster that a user has put into a type of their own.
type wrapped struct{ *redis.ClusterClient }

func TestMailboxOfAWrappedClusterClient(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: wrapped{redistest.StartCluster(t).Client(t)}, Prefix: "own"}
	r := receive(t, mailbox(t, s))
	r.connected(s)
	for range 20 { // one node knows of the connection, and which is asked first is random
		listening, err := queue.Listening(ctx, queue.MustClient(s.Client), r.address)
		require.NoError(t, err)
		require.True(t, listening)
	}
}
