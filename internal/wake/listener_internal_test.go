package wake

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestAPollComesBeforeTheSignOfLifeIsOver(t *testing.T) {
	t.Parallel()
	require.Less(t, longestPoll*11/10, queue.SignValid)
}

// network lets the Pub/Sub connections that there are go deaf: they stay open and bring nothing any
// more.
type network struct {
	mu    sync.Mutex
	conns map[*conn]bool
}

type conn struct {
	net.Conn
	network *network
	pubsub  bool
	deaf    bool
}

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, kind, addr)
	if err != nil {
		return nil, err
	}
	made := &conn{Conn: c, network: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[made] = true
	return made, nil
}

func (n *network) deafen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.deaf = c.pubsub
	}
}

func (c *conn) Write(b []byte) (int, error) {
	c.network.mu.Lock()
	c.pubsub = c.pubsub || strings.Contains(string(b), "\r\nsubscribe\r\n")
	c.network.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.network.mu.Lock()
		deaf := c.deaf
		c.network.mu.Unlock()
		if !deaf || err != nil {
			return n, err
		}
	}
}

func TestAConnectionThatBringsNothingIsMadeAnew(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		n := &network{conns: map[*conn]bool{}}
		client := redis.NewClient(&redis.Options{Addr: s.Client.(*redis.Client).Options().Addr, Dialer: n.dial})
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithCancel(t.Context())
		channel := queue.MailboxChannel(s.Prefix, queue.Token())
		events := (&listener{servers.MustClient(client), channel, 10 * time.Millisecond, 300 * time.Millisecond, make(chan struct{}, 1)}).listen(ctx, client.Subscribe(ctx, channel))
		await(t, events, subscription)
		for range 3 {
			await(t, events, func(event any) bool { return heard(event) == "" }) // a test
		}
		n.deafen()
		await(t, events, subscription) // so that those who may have missed something look
		require.NoError(t, s.Client.Publish(ctx, channel, "receiver").Err())
		await(t, events, func(event any) bool { return heard(event) == "receiver" })
		cancel()
		for range events { // closed
		}
		require.Eventually(t, func() bool {
			return s.Client.PubSubNumSub(context.Background(), channel).Val()[channel] == 0
		}, 10*time.Second, time.Millisecond)
	})
}

// The answer may come before it is known that it was asked for.
func TestAConnectionThatWorksIsKept(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := redis.NewClient(s.Client.(*redis.Client).Options())
		t.Cleanup(func() { _ = client.Close() })
		client.AddHook(late{})
		channel := queue.MailboxChannel(s.Prefix, queue.Token())
		ctx := t.Context()
		events := (&listener{servers.MustClient(client), channel, 5 * time.Millisecond, 10 * time.Second, make(chan struct{}, 1)}).listen(ctx, client.Subscribe(ctx, channel))
		await(t, events, subscription)
		for range 20 {
			event := <-events
			require.False(t, subscription(event), "it was made anew")
			require.Empty(t, heard(event))
		}
	})
}

// late is a hook by which the answer to a PUBLISH comes late.
type late struct{ redis.Hook }

func (late) DialHook(next redis.DialHook) redis.DialHook { return next }
func (late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "publish" {
			time.Sleep(2 * time.Millisecond) // which tracing may take
		}
		return err
	}
}

// A primary that is a replica now brings what is published to the new one, which does not know of
// those who listen there.
func TestAConnectionToAServerThatTakesNoCallsIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"quiet": false, "busy": true} {
		t.Run(name, func(t *testing.T) { testDemoted(t, busy) })
	}
}

func testDemoted(t *testing.T, busy bool) {
	t.Parallel()
	was, is := redistest.Start(t), redistest.Start(t)
	ctx := t.Context()
	require.NoError(t, was.Client(t).Do(ctx, "REPLICAOF", "127.0.0.1", is.Port()).Err())
	addr := was.Addr()
	var mu sync.Mutex
	dial := func(ctx context.Context, kind, _ string) (net.Conn, error) { // as where a name stands for the primary
		mu.Lock()
		defer mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, kind, addr)
	}
	client := redis.NewClient(&redis.Options{Addr: "primary:6379", Dialer: dial, PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	events := (&line{client: servers.MustClient(client), channel: "channel", counts: 50 * time.Millisecond}).listen(ctx)
	isConnected := func(event any) bool {
		c, is := event.(connected)
		return is && c.err == nil
	}
	await(t, events, isConnected)
	if busy {
		publisher := is.Client(t)
		var publishing sync.WaitGroup
		ended := make(chan struct{})
		publishing.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
					_ = publisher.Publish(ctx, "channel", "receiver").Err()
				}
			}
		})
		defer publishing.Wait()
		defer close(ended)
		await(t, events, func(event any) bool { return heard(event) == "receiver" })
	}
	mu.Lock()
	addr = is.Addr()
	mu.Unlock()
	require.NoError(t, was.Client(t).ClientKillByFilter(ctx, "TYPE", "normal").Err())
	await(t, events, isConnected)
	require.Eventually(t, func() bool {
		return is.Client(t).PubSubNumSub(ctx, "channel").Val()["channel"] == 1
	}, 10*time.Second, time.Millisecond)
}

// sharedChannel is a hook by which what is published comes to all at once, without a server.
type sharedChannel struct {
	redis.Hook
	mu        sync.Mutex
	listening []chan any
	published int
}

func (c *sharedChannel) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.published++
		for _, incoming := range c.listening {
			incoming <- &redis.Message{}
		}
		cmd.(*redis.IntCmd).SetVal(int64(len(c.listening)))
		return nil
	}
}

// As each test of a shared channel comes to all, they would else be the square of those who listen.
func TestOneTestsASharedChannelForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		channel := &sharedChannel{Hook: late{}}
		client.AddHook(channel)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		events := make(chan any, 1e6)
		var listeners sync.WaitGroup
		for range 100 {
			channel.listening = append(channel.listening, make(chan any, 100))
		}
		for _, incoming := range channel.listening {
			listeners.Go(func() {
				if newListener(servers.MustClient(client), "channel").pass(ctx, incoming, events) {
					t.Error("it was to be made anew")
				}
			})
		}
		listeners.Wait()
		synctest.Wait()
		require.LessOrEqual(t, channel.published, 40)
		require.GreaterOrEqual(t, channel.published, 20)

		began := time.Now() // the others hear it
		require.True(t, newListener(servers.MustClient(client), "channel").pass(t.Context(), nil, events))
		require.LessOrEqual(t, time.Since(began), 2*healthCheck+answerWithin)
	})
}

// await waits for an event.
func await(t *testing.T, events <-chan any, is func(event any) bool) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case event := <-events:
			if is(event) {
				return
			}
		case <-timeout:
			t.Fatal("nothing comes")
		}
	}
}

func subscription(event any) bool {
	_, is := event.(*redis.Subscription)
	return is
}

// heard is the text of a message.
func heard(event any) string {
	if m, is := event.(*redis.Message); is {
		return m.Payload
	}
	return "no message"
}

// The client goes on with a call whose context has ended, until there is an answer.
func TestEndWaitsForATestThatIsUnderWay(t *testing.T) {
	for took, waits := range map[time.Duration]time.Duration{500 * time.Millisecond: 500 * time.Millisecond, time.Minute: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer client.Close()
			client.AddHook(slowCalls(took))
			h := newListener(servers.MustClient(client), "channel")
			ctx, cancel := context.WithCancel(t.Context())
			tested := make(chan error)
			go func() { tested <- h.test(ctx) }()
			synctest.Wait()
			cancel()
			began := time.Now()
			h.end()
			require.Equal(t, waits, time.Since(began))
			<-tested
		})
	}
}

// slowCalls is a hook of a client whose calls take that long, and heed no context.
type slowCalls time.Duration

func (slowCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d slowCalls) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error {
		time.Sleep(time.Duration(d))
		return nil
	}
}

func (slowCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
