package redisdelay_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// replicated gives a test a primary with replicas.
func replicated(t *testing.T, n int) (s redistest.Server, primary *redistest.Instance, replicas []*redistest.Instance) {
	t.Helper()
	t.Parallel()
	primary, replicas = redistest.StartReplicated(t, n)
	return redistest.On(t, primary.Client(t), "test"), primary, replicas
}

// waitingFor has Publish wait for n replicas.
func waitingFor(n int, timeout time.Duration) func(*redisdelay.PublisherConfig) {
	return func(c *redisdelay.PublisherConfig) { c.WaitReplicas, c.WaitTimeout = n, timeout }
}

// bodiesOn counts the messages that a server has.
func bodiesOn(t *testing.T, in *redistest.Instance, topic string) int {
	t.Helper()
	pipe := in.Client(t).Pipeline()
	pipe.Do(ctx, "readonly") // a replica of a cluster only answers then
	n := pipe.HLen(ctx, queue.NewKeys("test", topic).Messages())
	_, _ = pipe.Exec(ctx) // elsewhere there is no such command
	require.NoError(t, n.Err())
	return int(n.Val())
}

func TestPublishReturnsWhenTheReplicasHaveIt(t *testing.T) {
	s, _, replicas := replicated(t, 2)
	p := newPublisher(t, s, waitingFor(2, never))
	for i := range 20 {
		publish(t, p, "t", "x")
		for _, replica := range replicas {
			require.Equal(t, i+1, bodiesOn(t, replica, "t"))
		}
	}
}

// A message that is in the stream at once leaves no body that a replica could have: only the entry,
// and the call's number.
func TestPublishIntoAStreamReturnsWhenTheReplicasHaveIt(t *testing.T) {
	s, _, replicas := replicated(t, 2)
	p := newPublisher(t, s, notScheduling, waitingFor(2, never))
	hasty := newPublisher(t, s, notScheduling, waitingFor(2, 100*time.Millisecond))
	for i := range 20 {
		require.NoError(t, p.Publish("t", delayed("later", never)))
		require.NoError(t, p.Publish("t", text("at once")))
		for _, replica := range replicas {
			require.EqualValues(t, i+1, replica.Client(t).XLen(ctx, "t").Val())
			require.Equal(t, i+1, bodiesOn(t, replica, "t"))
		}
	}
	replicas[0].Pause()
	defer replicas[0].Resume()
	require.ErrorIs(t, hasty.Publish("t", text("unconfirmed")), redisdelay.ErrNotReplicated)
	require.EqualValues(t, 21, s.Client.XLen(ctx, "t").Val())
}

func TestPublishThatAFrozenReplicaDoesNotConfirm(t *testing.T) {
	s, _, replicas := replicated(t, 2)
	p, patient := newPublisher(t, s, waitingFor(2, 100*time.Millisecond)), newPublisher(t, s, waitingFor(2, never))
	publish(t, patient, "t", "before")

	replicas[0].Pause()
	began := time.Now()
	err := p.Publish("t", text("unconfirmed"))
	require.ErrorIs(t, err, redisdelay.ErrNotReplicated)
	require.ErrorContains(t, err, "of 2 replicas have it after 100ms")
	require.ErrorContains(t, err, `topic "t"`)
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	publish(t, newPublisher(t, s, waitingFor(1, never)), "t", "one has it")

	sent := serverTime(t, s)
	eventually(t, func() bool { return serverTime(t, s).Sub(sent) > time.Millisecond }, "what another Publisher sends is due later")
	confirmed := begin(func() error { return patient.Publish("t", text("waits")) })
	eventually(t, func() bool { return bodiesOn(t, replicas[1], "t") == 4 }, "the other has it")
	select {
	case err := <-confirmed:
		t.Fatalf("confirmed by a frozen replica: %v", err)
	case <-time.After(600 * time.Millisecond): // longer than one WAIT
	}
	replicas[0].Resume()
	require.NoError(t, wait(t, confirmed, "the thawed replica"))
	publish(t, patient, "t", "after")
	require.Equal(t, []string{"before", "unconfirmed", "one has it", "waits", "after"}, consume(t, subscribe(t, s, "t"), 5))
}

func TestServerWithoutReplicasConfirmsNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, waitingFor(1, 50*time.Millisecond))
		began := time.Now()
		err := p.Publish("t", text("x"))
		require.ErrorIs(t, err, redisdelay.ErrNotReplicated)
		require.ErrorContains(t, err, "0 of 1 replicas")
		require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
		require.Equal(t, []string{"x"}, consume(t, subscribe(t, s, "t"), 1))
	})
}

// A reply that is lost has the client call again, over another connection, on which nothing was
// written yet.
func TestRepeatedPublishIsConfirmedToo(t *testing.T) {
	s, _, replicas := replicated(t, 1)
	publish(t, newPublisher(t, s), "t", "loads the scripts")
	through := newProxy(t, s)
	s.Client = through.client(t)
	p, impatient := newPublisher(t, s, waitingFor(1, never)), newPublisher(t, s, waitingFor(1, 100*time.Millisecond))
	through.loseReplies(1, "evalsha", func() {})
	publish(t, p, "t", "repeated")
	require.Zero(t, through.left())
	require.Equal(t, 2, bodiesOn(t, replicas[0], "t"))

	through.loseReplies(1, "evalsha", replicas[0].Pause)
	require.ErrorIs(t, impatient.Publish("t", text("repeated")), redisdelay.ErrNotReplicated)
	require.Zero(t, through.left())
	replicas[0].Resume()
	through.loseReplies(1, "pexpire", func() {})
	publish(t, p, "t", "asked about twice")
	require.Zero(t, through.left())
	require.Equal(t, 4, bodiesOn(t, replicas[0], "t"))
}

func TestConcurrentPublishesAreConfirmedTogether(t *testing.T) {
	s, primary, replicas := replicated(t, 1)
	p := newPublisher(t, s, waitingFor(1, never))
	publish(t, p, "t", "x")
	asks := counter(s.Client, "pexpire")
	replicas[0].Pause()
	first := begin(func() error { return p.Publish("t", text("x")) })
	eventually(t, func() bool { return bodiesOn(t, primary, "t") == 2 }, "the first is in")
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { publish(t, p, "t", "x") })
	}
	replicas[0].Resume()
	require.NoError(t, wait(t, first, "the first"))
	wg.Wait()
	require.Equal(t, 102, bodiesOn(t, replicas[0], "t"))
	require.Less(t, asks.calls(), 50)
}

// The topic is full, so that calls which take the place of others go in several, after there was no
// room for one that does not.
func TestCallsThatGoTogetherWaitOnceForReplicasThatDoNotConfirm(t *testing.T) {
	const waiting, timeout = 31, time.Second
	s, _, replicas := replicated(t, 1)
	replacing := func(i int) *message.Message { return named("x", fmt.Sprint(i), redisdelay.DelayIDReplace, never) }
	before := newPublisher(t, s)
	for i := range waiting {
		require.NoError(t, before.Publish("t", replacing(i)))
	}
	client := another(t, s)
	held := gate(t, client)
	var asked atomic.Int64 // ms that Redis was asked to wait
	client.AddHook(redistest.BeforeEach(func(call redis.Cmder) error {
		if call.Name() == "wait" {
			ms, err := strconv.ParseInt(fmt.Sprint(call.Args()[2]), 10, 64)
			asked.Add(ms)
			return err
		}
		return nil
	}))
	p := newPublisher(t, s, waitingFor(1, timeout), func(c *redisdelay.PublisherConfig) { c.Client, c.MaxWaiting = client, waiting })
	replicas[0].Pause()
	results := []<-chan error{begin(func() error { return p.Publish("t", replacing(0)) })}
	wait(t, held.arrived, "the first call")
	for i := range waiting {
		results = append(results, queued(t, func() error { return p.Publish("t", replacing(i)) }))
	}
	refused := queued(t, func() error { return p.Publish("t", replacing(waiting)) })
	held.open()
	for _, result := range results {
		require.ErrorIs(t, wait(t, result, "a call"), redisdelay.ErrNotReplicated)
	}
	require.ErrorIs(t, wait(t, refused, "the one that is refused"), redisdelay.ErrTopicFull)
	require.GreaterOrEqual(t, held.calls(), 1+1+5, "after the first and the refused one they went in calls of 1, 2, 4, 8, and 16")
	// The first and the first of the others waited. Each call after that asked for a millisecond.
	require.Positive(t, asked.Load())
	require.Less(t, asked.Load(), 3*timeout.Milliseconds())
}

func TestClosedPublisherWaitsForNoReplica(t *testing.T) {
	s, _, replicas := replicated(t, 1)
	p := newPublisher(t, s, waitingFor(1, never), func(c *redisdelay.PublisherConfig) { c.CloseTimeout = 50 * time.Millisecond })
	publish(t, p, "t", "x")
	replicas[0].Pause()
	published := begin(func() error { return p.Publish("t", text("y")) })
	eventually(t, func() bool { return stateOf(t, s, "t").Bodies == 2 }, "the primary has it")
	require.Error(t, p.Close())
	err := wait(t, published, "the call")
	require.ErrorIs(t, err, redisdelay.ErrNotReplicated)
	require.ErrorIs(t, err, redisdelay.ErrClosed)
}

// A server that took the primary's place before it had the call does not have its number either.
func TestPublishThatAFailoverLostIsNotConfirmed(t *testing.T) {
	s, _, _ := replicated(t, 1)
	publish(t, newPublisher(t, s), "t", "x")
	p := newPublisher(t, s, waitingFor(1, never))
	publish(t, p, "t", "y") // and what is permitted is known
	asks := hold(t, s.Client, "pexpire")
	published := begin(func() error { return p.Publish("t", text("lost")) })
	wait(t, asks.arrived, "the question whether the replica has it")
	// As if another server answered it.
	s.Client = another(t, s)
	for _, key := range keysOf(t, s) {
		if strings.Contains(key, ":publisher:") {
			require.NoError(t, s.Client.Del(ctx, key).Err())
		}
	}
	asks.open()
	err := wait(t, published, "Publish")
	require.ErrorIs(t, err, redisdelay.ErrNotReplicated)
	require.ErrorContains(t, err, "the call is lost")
}

func TestPublishThatDoesNotWaitAsksForNoReplica(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		asks := counter(s.Client, "pexpire")
		publish(t, newPublisher(t, s), "t", "x")
		require.Zero(t, asks.calls())
	})
}

func TestPublisherThatMayNotWaitFailsBeforeAnythingIsWritten(t *testing.T) {
	s, in := private(t)
	admin := s.Client
	for _, name := range []string{"wait", "pexpire"} {
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", "-"+name).Err())
		client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: name, Password: "secret"})
		t.Cleanup(func() { _ = client.Close() })
		s.Client = client
		p := newPublisher(t, s, waitingFor(1, never))
		for range 2 {
			err := p.Publish("t", text("x"))
			require.ErrorIs(t, err, redisdelay.ErrForbidden)
			require.ErrorContains(t, err, "+"+name)
		}
		s.Client = admin
		require.Zero(t, stateOf(t, s, "t").Bodies)
	}
}

// go-redis by itself goes on for ten seconds to ask the node that it knows.
func TestPublisherFindsTheNodeThatTookOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s := redistest.On(t, cluster.Client(t), "test")
	p := newPublisher(t, s)
	publish(t, p, "t", "x")
	owner, replica := cluster.Owner("{t}")
	owner.Kill()
	require.Error(t, p.Publish("t", text("x")))
	replica.AwaitInfo("role:master")
	began := time.Now()
	for p.Publish("t", text("x")) != nil {
		require.Less(t, time.Since(began), 5*time.Second)
	}
}

func TestReplicasOfAClusterConfirm(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s := redistest.On(t, cluster.Client(t), "test")
	p := newPublisher(t, s, waitingFor(1, never))
	for _, topic := range []string{"a", "b", "c", "d"} { // on several nodes
		publish(t, p, topic, "x")
		_, replica := cluster.Owner("{" + topic + "}")
		require.Equal(t, 1, bodiesOn(t, replica, topic))
	}
	_, replica := cluster.Owner("{a}")
	replica.Pause()
	p = newPublisher(t, s, waitingFor(1, 100*time.Millisecond))
	require.ErrorIs(t, p.Publish("a", text("x")), redisdelay.ErrNotReplicated)
	replica.Resume()
	require.Equal(t, []string{"x", "x"}, consume(t, subscribe(t, s, "a"), 2))
}
