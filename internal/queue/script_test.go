package queue_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestScriptsThatTheServerLostAreLoadedAgain(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		s := w.sub("a")
		for _, do := range []func(){
			func() { w.publishNow("1", "2", "3", "4") },
			func() { w.promote("scheduler|1") },
			func() { require.Len(t, s.claim(1).Messages, 1) },
			func() { w.expire() },
		} {
			require.NoError(t, w.Client.ScriptFlush(ctx).Err())
			do()
		}
		require.Equal(t, []string{"2", "3", "4"}, w.ready("a"))
	}, "a")
}

// Loading them on all nodes would wait for each, and fail for want of one. What is then sent whole
// is learnt call by call, and a pipeline that lacks some of its scripts loses its order.
func TestScriptsAreLoadedWhileAnotherNodeHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-node-timeout", "60000") // no failover
	client := cluster.Client(t)
	topic := topicOf(client, "own", "topic")
	owner, itsReplica := cluster.Owner("{topic}")
	require.NoError(t, do(ctx, client, topic.ResignCall("nobody"))) // the client knows who has which slots
	for _, hangs := range cluster.Nodes() {
		if hangs == owner || hangs == itsReplica {
			continue
		}
		require.NoError(t, owner.Client(t).ScriptFlush(ctx).Err())
		hangs.Pause()
		began := time.Now()
		err := do(ctx, client, topic.ResignCall("nobody"), topic.Group("a").ReleaseCalls([]*queue.Leased{{ID: "x", Token: "y"}}, false)[0])
		took := time.Since(began)
		hangs.Resume()
		require.NoError(t, err)
		require.Less(t, took, 2*time.Second)
		for _, loaded := range owner.Client(t).ScriptExists(ctx, queue.ScriptSHA(queue.LoadOrder()[0])).Val() {
			require.True(t, loaded, "they were sent whole")
		}
	}
}

// Between the two calls of a pipeline nothing may come, and none may pass the other.
func TestPipelinedCallsKeepTheirOrderWhenScriptsAreMissing(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		claimed := held(s.claim(3))
		require.NoError(t, w.Client.ScriptFlush(ctx).Err())
		w.do(s.group.ExtendCalls(claimed, time.Hour)...) // loads what it needs

		calls := s.group.ReleaseCalls(claimed[1:], false)
		calls = append(calls, s.group.NackCalls([]queue.Failure{failed(claimed[0])})...)
		query := s.query(9)
		calls = append(calls, s.group.ClaimCall(query))
		w.do(calls...)
		got, err := query.ReadClaim(calls[len(calls)-1].Cmd())
		require.NoError(t, err)
		require.Equal(t, []string{"1", "2", "3", "4"}, bodies(got))
	}, "a")
}

// Another process may be loading the scripts, one after the other, as all do after a restart of the
// server.
func TestPipelinedCallsKeepTheirOrderWhileScriptsAreLoaded(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		order := queue.LoadOrder()
		for n := range order {
			claimed := held(s.claim(9))
			require.NoError(t, w.Client.ScriptFlush(ctx).Err())
			for _, source := range order[:n] {
				require.NoError(t, w.Client.ScriptLoad(ctx, source).Err())
			}
			calls := s.group.ReleaseCalls(claimed[1:], false)
			calls = append(calls, s.group.NackCalls([]queue.Failure{failed(claimed[0], func(f *queue.Failure) { f.Limit = -1 })})...)
			query := s.query(9)
			calls = append(calls, s.group.ClaimCall(query))
			w.do(calls...)
			got, err := query.ReadClaim(calls[len(calls)-1].Cmd())
			require.NoError(t, err)
			require.Equal(t, []string{"1", "2", "3"}, bodies(got), "with %d scripts", n)
			require.Equal(t, 3, s.release(held(got)...))
		}
	}, "a")
}

func TestPipelineAfterScriptFlush(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		claimed := held(s.claim(2))
		require.NoError(t, w.Client.ScriptFlush(ctx).Err())
		calls := s.group.ReleaseCalls(claimed[1:], false)
		calls = append(calls, s.group.AckCalls(claimed[:1])...)
		query := s.query(9)
		calls = append(calls, s.group.ClaimCall(query))
		w.do(calls...)
		got, err := query.ReadClaim(calls[2].Cmd())
		require.NoError(t, err)
		require.Equal(t, []string{"2", "3"}, bodies(got))
		require.Equal(t, []string{"2", "3"}, w.stored())
	}, "a")
}

// hook does something after each command of a name.
type hook struct {
	redis.Hook
	name string
	do   func()
}

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == h.name {
			h.do()
		}
		return err
	}
}

func TestScriptsLostAgainAtOnceAreSentWhole(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		other := redis.NewClient(w.Client.(*redis.Client).Options())
		defer other.Close()
		flush := func() { require.NoError(t, other.ScriptFlush(ctx).Err()) }
		flush()
		w.Client.AddHook(redistest.AfterEach(func(call redis.Cmder) {
			if call.Name() == "script" {
				flush()
			}
		}))
		w.publishNow("x")
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

func TestUserThatMayNotLoadScriptsRunsThem(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "&own:*", "+@all", "-script").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	w := newWorld(t, redistest.Server{Client: user, Prefix: "own"}, "topic", "a")
	w.publishNow("x", "y")
	s := w.sub("a")
	query := s.query(2)
	require.Equal(t, []string{"x", "y"}, bodies(s.ask(query)))
	require.NoError(t, admin.ScriptFlush(ctx).Err())
	claim := s.group.ClaimCall(query)
	w.do(claim, w.topic.ResignCall("nobody"))
	got, err := query.ReadClaim(claim.Cmd())
	require.NoError(t, err)
	require.Len(t, got.Messages, 2)
}

func TestEachCallKeepsItsOwnError(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.NoError(t, w.Client.Rename(ctx, w.keys.Ready("b"), "aside").Err())
		require.NoError(t, w.Client.Set(ctx, w.keys.Ready("b"), "wrong", 0).Err())
		queries := []queue.Claim{w.sub("b").query(1), w.sub("a").query(1)}
		calls := []*queue.Call{w.topic.Group("b").ClaimCall(queries[0]), w.topic.Group("a").ClaimCall(queries[1])}
		require.NoError(t, calls[0].Err(), "not yet")
		require.ErrorContains(t, do(ctx, w.Client, calls...), "WRONGTYPE")
		require.ErrorContains(t, calls[0].Err(), "WRONGTYPE")
		_, err := queries[0].ReadClaim(calls[0].Cmd())
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NoError(t, calls[1].Err())
		got, err := queries[1].ReadClaim(calls[1].Cmd())
		require.NoError(t, err)
		require.Len(t, got.Messages, 1)
		require.NoError(t, w.Client.Rename(ctx, "aside", w.keys.Ready("b")).Err())
	}, "a", "b")
}

func TestNoAnswerIsUnreachable(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Prefix: "own"}, "topic", "a")
	mini.Close()
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err := do(soon, client, w.topic.ResignCall("a|b"), w.topic.ResignCall("a|c"))
	require.Error(t, err)
	require.True(t, servers.Unreachable(err))
}

func TestAReplicaThatTakesNoWritesIsUnreachable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica.", // Redis 6.2
	} {
		require.True(t, servers.Unreachable(proto(text)), text)
	}
	require.False(t, servers.Unreachable(proto("ERR READONLY is no command")))
}

// proto is an error as a server sends it.
type proto string

func (e proto) Error() string { return string(e) }
func (proto) RedisError()     {}

// go-redis returns the error of a pipeline that never got a connection, and gives its commands
// none. So acks passed for done that no server had seen.
func TestEachCallOfAPipelineThatIsRefusedHasAnError(t *testing.T) {
	for name, retries := range map[string]int{"at the first attempt": -1, "at each attempt": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini, _ := redistest.Embedded(t)
			addr := mini.Addr()
			mini.Close()
			refused := redis.NewClient(&redis.Options{
				Addr: addr, MaxRetries: retries, MinRetryBackoff: -1, MaxRetryBackoff: -1, DialerRetries: 1,
			})
			t.Cleanup(func() { _ = refused.Close() })
			requireNoReplies(t, refused, "refused")
			_, err := topicOf(refused, "own", "topic").Find(ctx, operate.Ref{DelayID: "x"})
			require.ErrorContains(t, err, "refused")
		})
	}
}

// silent is a hook by which pipelines go nowhere, which says so to nobody.
type silent struct{ redis.Hook }

func (silent) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (silent) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return nil }
}

func TestEachCallOfAPipelineThatIsNotSentHasAnError(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	client.AddHook(silent{})
	requireNoReplies(t, client, "there is no reply")
}

func requireNoReplies(t *testing.T, client redis.UniversalClient, text string) {
	t.Helper()
	group := topicOf(client, "own", "topic").Group("a")
	calls := group.AckCalls([]*queue.Leased{{ID: "x", Token: "y"}})
	calls = append(calls, group.ReleaseCalls([]*queue.Leased{{ID: "z", Token: "y"}}, false)...)
	err := do(ctx, client, calls...)
	require.ErrorContains(t, err, text)
	require.True(t, servers.Unreachable(err))
	for _, c := range calls {
		require.ErrorIs(t, c.Err(), err)
	}
}

// lossy is a connection that, when armed, loses the server's answer to a script call and breaks.
type lossy struct {
	net.Conn
	armed  *atomic.Int32
	called atomic.Bool
}

func (c *lossy) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("evalsha")) {
		c.called.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.called.Swap(false) && c.armed.Add(-1) >= 0 {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// losing has the world use a client that loses answers. What it returns has two answers lost to a
// function.
func (w *world) losing() func(f func()) {
	var armed atomic.Int32
	client := redis.NewClient(&redis.Options{
		Addr: w.Client.(*redis.Client).Options().Addr, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &lossy{Conn: conn, armed: &armed}, err
		},
	})
	w.t.Cleanup(func() { _ = client.Close() })
	w.topic = topicOf(client, w.Prefix, "topic")
	_, err := w.topic.Groups(ctx)
	require.NoError(w.t, err)
	w.Client = client
	return func(f func()) {
		w.t.Helper()
		armed.Store(2)
		f()
		require.LessOrEqual(w.t, armed.Load(), int32(0), "two answers were lost")
	}
}

// A client sends a command again when its answer is lost, so every call may run more than once.
func TestCallsWhoseAnswersAreLostCountOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		w.register("b")
		w.publish() // all scripts are loaded
		losing := w.losing()

		losing(func() { w.publishNow("1", "2", "3", "4", "5") })
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("b"))

		s := w.sub("a")
		var claimed []*queue.Leased
		losing(func() { claimed = held(s.claim(2)) })
		require.Len(t, claimed, 2)
		require.Equal(t, []string{"3", "4", "5"}, w.ready("a"))

		query := s.query(2)
		calls := append(s.group.NackCalls([]queue.Failure{failed(claimed[0])}), s.group.AckCalls(claimed[1:])...)
		calls = append(calls, s.group.ClaimCall(query))
		losing(func() { w.do(calls...) })
		got, err := query.ReadClaim(calls[2].Cmd())
		require.NoError(t, err)
		require.Equal(t, []string{"1", "3"}, bodies(got))
		require.Equal(t, 1, got.Messages[0].Deliveries)
		require.Equal(t, []string{"4", "5"}, w.ready("a"))
		require.Equal(t, "1", w.field(w.keys.Refs(), "2"))

		losing(func() { w.register("c") })
		losing(func() { w.promote("scheduler|1") })
		losing(func() { w.do(w.topic.ResignCall("scheduler|1")) })
	})
}

func TestOperationsWhoseAnswersAreLostSucceed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		w.publish(in("1", time.Hour), in("2", time.Hour))
		losing := w.losing()
		a := w.topic.Group("a")
		count := func(n int, err error) {
			t.Helper()
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		losing(func() { require.NoError(t, w.topic.Cancel(ctx, byID(w, "1"))) })
		w.retries("3", "a", "b")
		losing(func() { require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(time.Minute), nil)) })
		losing(func() { require.NoError(t, w.topic.CancelRetries(ctx, "x")) })
		losing(func() { require.NoError(t, w.topic.Reschedule(ctx, byID(w, "2"), queue.In(time.Minute))) })
		losing(func() { count(a.Requeue(ctx, []string{w.id["dead"]})) })
		w.promote("s|1")
		s := w.sub("a")
		for _, m := range held(s.claim(9)) {
			require.Equal(t, 1, s.nack(failed(m, dead)))
		}
		other := topicOf(w.Client, w.Prefix, "other")
		page, err := w.topic.List(ctx, "a", operate.Dead, "", 1, 1<<20)
		require.NoError(t, err)
		losing(func() { count(other.Mover().Move(ctx, a, page.Messages)) })
		stats, err := other.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, stats.Number("messages"))
		page, err = w.topic.List(ctx, "a", operate.Dead, "", 1, 1<<20)
		require.NoError(t, err)
		losing(func() { count(a.Discard(ctx, []string{page.Messages[0].ID})) })
		losing(func() { require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0))) })
		losing(func() {
			was, err := w.topic.Resume(ctx, "")
			require.NoError(t, err)
			require.True(t, was)
		})
		losing(func() { require.NoError(t, w.topic.Remove(ctx, "a")) })
		w.empty("a")
		require.NoError(t, only(w.topic.Stats(ctx))) // it knows the set of groups
		losing(func() { require.NoError(t, w.topic.Erase(ctx)) })
		require.False(t, w.Client.SIsMember(ctx, queue.Registry(w.Prefix), "topic").Val())
		require.NoError(t, other.Erase(ctx))
	}, "a", "b")
}

// sleeper has the machine sleep between an operation and its answer, for so long that the server
// forgets what it answered. Then the client sends the operation again.
type sleeper struct {
	redis.Hook
	w     *world
	awake bool
}

func (h *sleeper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *sleeper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *sleeper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		for _, arg := range cmd.Args() {
			key, _ := arg.(string)
			if h.awake || err != nil || !strings.Contains(key, ":operation:") {
				continue
			}
			h.awake = true
			forgotten := h.w.Client.PTTL(ctx, key).Val()
			// PTTL comes in whole milliseconds, and is read a moment after the operation ran.
			if deadline, _ := ctx.Deadline(); time.Until(deadline) > forgotten/2+time.Second {
				h.w.t.Errorf("it may be sent again for %v, and is forgotten in %v", time.Until(deadline), forgotten)
			}
			require.EqualValues(h.w.t, 1, h.w.Client.Del(ctx, key).Val())
			queue.Sleep(ctx, forgotten)
			return next(ctx, cmd)
		}
		return err
	}
}

// A repeat would take for the work of somebody else what its first run did.
func TestOperationsAreNotRepeatedOnceTheirResultsAreForgotten(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		w.die("a", 4)
		w.publish(in("5", time.Hour), in("6", time.Hour))
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		page, err := w.topic.List(ctx, "a", operate.Dead, "", 4, 1<<20)
		require.NoError(t, err)
		require.Len(t, page.Messages, 4)
		to := queue.NewKeys(w.Prefix, "to")

		late := func(do func(client redis.UniversalClient, topic *operate.Topic) error) {
			t.Helper()
			client := redis.NewClient(w.Client.(*redis.Client).Options())
			defer client.Close()
			client.AddHook(&sleeper{w: w})
			require.ErrorIs(t, do(client, topicOf(client, w.Prefix, "topic")), context.DeadlineExceeded)
		}
		late(func(client redis.UniversalClient, topic *operate.Topic) error {
			return only(topicOf(client, w.Prefix, "to").Mover().Move(ctx, topic.Group("a"), page.Messages[:2]))
		})
		require.EqualValues(t, 2, w.Client.ZCard(ctx, to.Pending()).Val(), "they are gone here, and due there after a while")
		require.EqualValues(t, 2, w.Client.HLen(ctx, to.Messages()).Val())
		late(func(_ redis.UniversalClient, topic *operate.Topic) error {
			return only(topic.Group("a").Requeue(ctx, []string{w.id["3"]}))
		})
		late(func(_ redis.UniversalClient, topic *operate.Topic) error {
			return only(topic.Group("a").Discard(ctx, []string{w.id["4"]}))
		})
		require.Equal(t, []string{"3", "5", "6"}, w.stored())
		late(func(_ redis.UniversalClient, topic *operate.Topic) error { return topic.Cancel(ctx, byID(w, "5")) })
		late(func(_ redis.UniversalClient, topic *operate.Topic) error {
			return topic.Reschedule(ctx, byID(w, "6"), queue.In(time.Minute))
		})
		late(func(_ redis.UniversalClient, topic *operate.Topic) error { return only(topic.Resume(ctx, "")) })
		w.register("b")
		late(func(_ redis.UniversalClient, topic *operate.Topic) error { return topic.Remove(ctx, "b") })
		require.NotContains(t, w.registered(), "b")
	}, "a")
}

func TestServerThatIsGoneMidwayIsReported(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Prefix: "own"}, "topic", "a")
	require.NoError(t, client.Close())
	_, err := w.topic.Expire(ctx)
	require.Truef(t, errors.Is(err, redis.ErrClosed), "%v", err)
	require.True(t, servers.Unreachable(err))
}

// A server that has lost its scripts has them again after two round trips: one shows whether the
// user may load scripts, one loads the rest.
func TestScriptsAreLoadedInTwoRoundTrips(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		require.NoError(t, w.Client.ScriptFlush(ctx).Err())
		var sent []int
		w.Client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
			if args := calls[0].Args(); args[0] == "script" && args[1] == "load" {
				sent = append(sent, len(calls))
			}
			return next()
		}))
		w.publishNow("x")
		require.Equal(t, []int{1, len(queue.Scripts()) - 1}, sent)
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}
