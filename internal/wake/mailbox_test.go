package wake_test

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
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// patience is for what happens at once, on a machine that is busy.
const patience = 20 * time.Second

func mailbox(t *testing.T, s redistest.Server) *wake.Mailbox {
	m, closeMailbox := wake.Open(servers.MustClient(s.Client), s.Prefix)
	t.Cleanup(closeMailbox)
	return m
}

// post sends to a mailbox's channel.
func post(t *testing.T, s redistest.Server, channel, payload string) {
	t.Helper()
	require.NoError(t, s.Client.Publish(ctx, channel, payload).Err())
}

// withTwoReceivers runs a test with two connected receivers of a mailbox, on both servers.
func withTwoReceivers(t *testing.T, test func(t *testing.T, s redistest.Server, m *wake.Mailbox, one, two *queuetest.Receiver)) {
	t.Helper()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := queuetest.Receive(t, m), queuetest.Receive(t, m)
		one.Connected(s.Client)
		two.Connected(s.Client)
		test(t, s, m, one, two)
	})
}

func TestMailboxWakesTheReceiverThatIsNamed(t *testing.T) {
	withTwoReceivers(t, func(t *testing.T, s redistest.Server, m *wake.Mailbox, one, two *queuetest.Receiver) {
		require.NotEqual(t, one.Address, two.Address)
		require.Equal(t, one.Channel(), two.Channel())
		require.True(t, strings.HasPrefix(one.Channel(), s.Prefix+":mailbox:"))
		for _, payload := range []string{"nobody", "nobody x", "", " ", one.Name() + "0 x", one.Name() + " first",
			one.Name() + " of several words", one.Name(), two.Name() + " second"} {
			post(t, s, one.Channel(), payload)
		}
		two.Gets("second")
		require.Equal(t, "first", <-one.Woken)
		require.Equal(t, "of several words", <-one.Woken)
		require.Equal(t, "", <-one.Woken)
		require.Empty(t, one.Woken)
	})
}

func TestMailboxWakesAllForAStar(t *testing.T) {
	withTwoReceivers(t, func(t *testing.T, s redistest.Server, m *wake.Mailbox, one, two *queuetest.Receiver) {
		post(t, s, one.Channel(), "*")
		one.Gets("")
		two.Gets("")
	})
}

func TestLossOfDataWakesAllReceiversOnce(t *testing.T) {
	withTwoReceivers(t, func(t *testing.T, s redistest.Server, m *wake.Mailbox, one, two *queuetest.Receiver) {
		began := time.Now()
		for range 3 { // each of the process's subscriptions finds its group gone
			m.DataLost()
		}
		one.Gets("")
		two.Gets("")
		if time.Since(began) < time.Second {
			require.Empty(t, one.Woken)
		}
		require.Eventually(t, func() bool { m.DataLost(); return len(two.Woken) > 0 }, patience, 10*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(began), time.Second)
	})
}

func TestReceiverThatStoppedIsNotWoken(t *testing.T) {
	withTwoReceivers(t, func(t *testing.T, s redistest.Server, m *wake.Mailbox, one, two *queuetest.Receiver) {
		one.Stop()
		one.Stop()
		post(t, s, one.Channel(), one.Name())
		post(t, s, one.Channel(), "*")
		post(t, s, one.Channel(), two.Name()+" end")
		two.Gets("end")
		require.Empty(t, one.Woken)
		three := queuetest.Receive(t, m)
		require.NotEqual(t, one.Address, three.Address, "an address is not used again")
	})
}

func TestProcessHasOneMailboxForAClientAndPrefix(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		first, closeFirst := wake.Open(servers.MustClient(s.Client), s.Prefix)
		second, closeSecond := wake.Open(servers.MustClient(s.Client), s.Prefix)
		require.Same(t, first, second)
		other, closeOther := wake.Open(servers.MustClient(s.Client), s.Prefix+"2")
		defer closeOther()
		require.NotSame(t, first, other)

		r := queuetest.Receive(t, second)
		r.Connected(s.Client)
		subscribers := func() int64 { return s.Client.PubSubNumSub(ctx, r.Channel()).Val()[r.Channel()] }
		require.EqualValues(t, 1, subscribers())
		closeFirst()
		closeFirst() // is the same user's
		post(t, s, r.Channel(), r.Name()+" still open")
		r.Gets("still open")
		closeSecond()
		require.Eventually(t, func() bool { return subscribers() == 0 }, patience, time.Millisecond)

		third, closeThird := wake.Open(servers.MustClient(s.Client), s.Prefix)
		defer closeThird()
		require.NotSame(t, first, third)
		queuetest.Receive(t, third).Connected(s.Client)
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
			queuetest.Receive(t, m).Connected(s.Client)
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
	one, two := queuetest.Receive(t, m), queuetest.Receive(t, m)
	one.Connected(s.Client)
	two.Connected(s.Client)
	for range 3 {
		require.EqualValues(t, 1, client.ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
		one.Gets("")
		two.Gets("")
	}
	post(t, s, one.Channel(), one.Name()+" x")
	one.Gets("x")
}

func TestMailboxOfAServerThatComesUpLater(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	in.Kill()
	s := redistest.Server{Client: in.Client(t), Prefix: "own"}
	m := mailbox(t, s)
	r := queuetest.Receive(t, m)
	require.NoError(t, m.Permitted(ctx, nil), "nobody knows")
	in.Restart()
	r.Gets("")
	post(t, s, r.Channel(), r.Name()+" x")
	r.Gets("x")
}

// unanswered is a network on which connections can be made, or nobody answers, until the end of the
// test.
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
			m, closeMailbox := wake.Open(servers.MustClient(client), "own")
			until, end := context.WithCancel(ctx)
			defer end()
			go m.Receive(queue.NewTopic(servers.MustClient(client), "own", "t"), func(string, func(time.Time)) {}).Address(until)
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

func TestMailboxOfAClosedClientCanBeClosed(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	_, closeMailbox := wake.Open(servers.MustClient(client), "own")
	require.NoError(t, client.Close())
	closeMailbox()
}

// own is a client whose Subscribe is the user's code.
type own struct {
	*redis.Client
	before func()
}

func (c *own) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	c.before()
	return c.Client.Subscribe(ctx, channels...)
}

// failsAtFirst returns a function that panics at its first calls, and tells when it does no more.
func failsAtFirst(calls int32) (fail func(), over func() bool) {
	var done atomic.Int32
	return func() {
		if done.Add(1) <= calls {
			panic("odd")
		}
	}, func() bool { return done.Load() > calls }
}

func TestMailboxOutlivesAClientThatPanics(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(addr string, fail func()) redis.UniversalClient{
		"in Subscribe": func(addr string, fail func()) redis.UniversalClient {
			return &own{redis.NewClient(&redis.Options{Addr: addr}), fail}
		},
		"in the dialer": func(addr string, fail func()) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, Dialer: func(ctx context.Context, kind, addr string) (net.Conn, error) {
				fail()
				return (&net.Dialer{}).DialContext(ctx, kind, addr)
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini, plain := redistest.Embedded(t)
			fail, over := failsAtFirst(2)
			s := redistest.Server{Client: client(mini.Addr(), fail), Prefix: "own"}
			t.Cleanup(func() { _ = s.Client.Close() })
			m := mailbox(t, s)
			r := queuetest.Receive(t, m)
			require.NoError(t, m.Permitted(ctx, nil))
			r.Gets("") // it has connected
			require.True(t, over())
			post(t, redistest.Server{Client: plain, Prefix: "own"}, r.Channel(), r.Name()+" x")
			r.Gets("x")
		})
	}
}

func TestOpenCallsNoUsersCodeUnderALock(t *testing.T) {
	t.Parallel()
	mini, plain := redistest.Embedded(t)
	opened := make(chan struct{})
	client := &own{redis.NewClient(&redis.Options{Addr: mini.Addr()}), func() {
		_, closeMailbox := wake.Open(servers.MustClient(plain), "another")
		closeMailbox()
		close(opened)
	}}
	t.Cleanup(func() { _ = client.Close() })
	began := make(chan func(), 1)
	go func() {
		_, closeMailbox := wake.Open(servers.MustClient(client), "own")
		began <- closeMailbox
	}()
	select {
	case <-opened:
	case <-time.After(patience):
		require.FailNow(t, "Subscribe is called under the lock of the mailboxes")
	}
	(<-began)()
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
	for _, c := range []struct{ without, with, says string }{
		{"-subscribe", "+subscribe", "the user has to be allowed +subscribe &own:mailbox:*: NOPERM"},
		{"resetchannels", "&own:*", "the user has to be allowed &own:mailbox:*: NOPERM"},
	} {
		admin := redistest.Start(t).Client(t)
		user := userWithout(t, admin, c.without)
		m := mailbox(t, redistest.Server{Client: user, Prefix: "own"})
		r := queuetest.Receive(t, m)
		err := m.Permitted(ctx, nil)
		require.ErrorIs(t, err, refusal.ErrForbidden)
		require.ErrorContains(t, err, c.says)
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", c.with).Err())
		r.Gets("")
		require.NoError(t, m.Permitted(ctx, nil))
		post(t, redistest.Server{Client: admin, Prefix: "own"}, r.Channel(), r.Name()+" x")
		r.Gets("x")
	}
}

func TestAMailboxOfAClusterSaysThatItMayNotListen(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	topic := queue.NewTopic(servers.MustClient(client), "own", "t")
	require.NoError(t, mailbox(t, redistest.Server{Client: client, Prefix: "allowed"}).Permitted(ctx, topic))
	for _, node := range cluster.Nodes() {
		require.NoError(t, node.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-subscribe").Err())
		_ = node.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-ssubscribe").Err() // which Redis 6.2 does not know
	}
	err := mailbox(t, redistest.Server{Client: client, Prefix: "own"}).Permitted(ctx, topic)
	require.ErrorIs(t, err, refusal.ErrForbidden)
	require.ErrorContains(t, err, "subscribe")
}

func TestReceiversPollMoreRarelyTheMoreThereAre(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	m := mailbox(t, redistest.Server{Client: client, Prefix: "own"})
	for n, want := range map[int]time.Duration{1: 5025 * time.Millisecond, 101: 7525 * time.Millisecond,
		2200: time.Minute, 3000: time.Minute} {
		var stops []func()
		for range n {
			stops = append(stops, m.Receive(nil, func(string, func(time.Time)) {}).Stop)
		}
		require.Equal(t, want, m.Poll())
		for _, stop := range stops {
			stop()
		}
	}
	require.Equal(t, 5*time.Second, m.Poll())
}

// wrapped is a client of a Cluster that a user has put into a type of their own.
type wrapped struct{ *redis.ClusterClient }

func TestMailboxOfAWrappedClusterClient(t *testing.T) {
	t.Parallel()
	client := servers.MustClient(wrapped{redistest.StartCluster(t).Client(t)})
	m, closeMailbox := wake.Open(client, "own")
	t.Cleanup(closeMailbox)
	servers, channels := map[string]bool{}, map[string]bool{}
	for i := range 20 {
		topic := queue.NewTopic(client, "own", fmt.Sprint("topic ", i))
		r := m.Receive(topic, func(string, func(time.Time)) {})
		defer r.Stop()
		address := ""
		require.Eventually(t, func() bool {
			address = r.Address(ctx) // the server may have no sharded channels
			listening, err := wake.Listening(ctx, client, topic, address)
			return err == nil && listening
		}, patience, time.Millisecond)
		server, err := topic.Master(ctx)
		require.NoError(t, err)
		servers[server] = true
		channels[address[:strings.LastIndexByte(address, '|')]] = true
	}
	require.Len(t, servers, 3)
	require.Len(t, channels, 3, "one for each master")
}

// topicsOn returns a topic for each master of a Cluster.
func topicsOn(cluster *redistest.Cluster, client *servers.Client) (topics []*queue.Topic, masters []*redistest.Instance) {
	of := map[*redistest.Instance]bool{}
	for i := 0; len(of) < len(cluster.Primaries); i++ {
		topic := queue.NewTopic(client, "own", fmt.Sprint("topic ", i))
		if owner, _ := cluster.Owner(topic.Key()); !of[owner] {
			of[owner] = true
			topics, masters = append(topics, topic), append(masters, owner)
		}
	}
	return topics, masters
}

func TestANewConnectionToAMasterWakesItsOwnReceiversOnly(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := servers.MustClient(cluster.Client(t))
	m, closeMailbox := wake.Open(client, "own")
	t.Cleanup(closeMailbox)
	topics, masters := topicsOn(cluster, client)
	one, two := queuetest.ReceiveFor(t, m, topics[0]), queuetest.ReceiveFor(t, m, topics[1])
	one.Connected(masters[0].Client(t))
	two.Connected(masters[1].Client(t))
	for range 3 {
		require.EqualValues(t, 1, masters[0].Client(t).ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
		one.Gets("")
		one.Connected(masters[0].Client(t))
	}
	require.Empty(t, two.Woken)
}

func TestAReceiverTakesTheConnectionThatPermittedMade(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := servers.MustClient(cluster.Client(t))
	m, closeMailbox := wake.Open(client, "own")
	t.Cleanup(closeMailbox)
	topics, masters := topicsOn(cluster, client)
	for range 3 {
		require.NoError(t, m.Permitted(ctx, topics[0]))
		r := m.Receive(topics[0], func(string, func(time.Time)) {})
		r.Address(ctx)
		defer r.Stop()
	}
	stats := masters[0].Client(t).Info(ctx, "commandstats").Val()
	require.Equal(t, 1, strings.Count(stats, "subscribe:calls=1,"), stats)
	require.NotContains(t, stats, "unsubscribe:")
	require.Equal(t, 1, strings.Count(masters[0].Client(t).ClientList(ctx).Val(), "cmd="+map[bool]string{true: "s"}[strings.Contains(stats, "ssubscribe")]+"subscribe"))
}

// A node that hangs is not asked about the addresses of others, which are told apart meanwhile.
func TestWhoIsGoneIsKnownOfTheNodesThatAnswer(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	user := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { _ = user.Close() })
	client := servers.MustClient(user)
	m, closeMailbox := wake.Open(client, "own")
	t.Cleanup(closeMailbox)
	topics, masters := topicsOn(cluster, client)
	var all []wake.Addressed
	want := map[string]bool{"no address": true}
	for i, topic := range topics {
		r := queuetest.ReceiveFor(t, m, topic)
		r.Connected(masters[i].Client(t))
		gone := strings.Replace(r.Address, ":mailbox:", ":mailbox:gone", 1)
		all = append(all, wake.Addressed{Topic: topic, Addresses: []string{r.Address, gone}})
		want[gone] = true
	}
	all[0].Addresses = append(all[0].Addresses, "no address")
	gone, err := wake.Gone(ctx, client, all)
	require.NoError(t, err)
	require.Equal(t, want, gone)

	last := len(masters) - 1
	_, replica := cluster.Owner(topics[last].Key())
	replica.Kill()
	masters[last].Pause()
	began := time.Now()
	gone, err = wake.Gone(ctx, client, all)
	require.Less(t, time.Since(began), 3*time.Second)
	require.Error(t, err)
	delete(want, all[last].Addresses[1])
	require.Equal(t, want, gone)
}

// After a slot migration, waiters has addresses whose connection is at another node. Their channels
// are sharded ones in a slot there, or plain ones.
func TestAnAddressOnAnotherNodeTakesNoWakeUp(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	user := cluster.Client(t)
	client := servers.MustClient(user)
	m, closeMailbox := wake.Open(client, "own")
	t.Cleanup(closeMailbox)
	topics, masters := topicsOn(cluster, client)
	topic := topics[0]
	r := queuetest.ReceiveFor(t, m, topic)
	r.Connected(masters[0].Client(t))
	require.NoError(t, topic.Register(ctx, "g", queue.GroupOptions{}))
	elsewhere := masters[1].Client(t).Subscribe(ctx, queue.MailboxChannel("own", "left"))
	defer elsewhere.Close()
	_, err := elsewhere.Receive(ctx)
	require.NoError(t, err)
	soon := float64(time.Now().Add(time.Minute).UnixMilli())
	require.NoError(t, user.ZAdd(ctx, queue.NewKeys("own", topic.Name).Waiters("g"),
		redis.Z{Score: soon, Member: queue.MailboxChannel("own", "left") + "|1"},
		redis.Z{Score: soon, Member: queue.ShardedMailbox("own", "left", topics[1].Name) + "|1"},
		redis.Z{Score: soon + 1000, Member: r.Address}).Err())
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(t, err)
	require.NoError(t, topic.PublishWithin(ctx, "publisher", 1, []queue.Message{{ID: id, Due: queue.In(0), Body: []byte("x")}}, queue.Limit{}))
	r.Gets("")
}
