package faults

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const (
	closeTimeout = 500 * time.Millisecond
	// clientGivesUp is after when go-redis returns from a call that has no answer: four tries of 3 s, and pauses. Callers
	// who are in Subscribe are in such a call.
	clientGivesUp = 20 * time.Second
)

// bench is a subscriber and a publisher behind a network, which are about to be closed.
type bench struct {
	t          *testing.T
	server     *redistest.Instance
	network    *faulttest.Proxy
	client     redis.UniversalClient
	subscriber *redisdelay.Subscriber
	publisher  *redisdelay.Publisher
	messages   <-chan *message.Message
}

// newBench starts what is not the project's, and has the rest start in goroutines that are known by the test's name.
func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, server: redistest.Start(t)}
	b.network = faulttest.NewProxy(t, b.server.Addr())
	return b
}

// open opens what is to be closed.
func (b *bench) open() {
	t := b.t
	t.Helper()
	b.client = b.network.Place().Client()
	t.Cleanup(func() { _ = b.client.Close() })
	b.subscriber = newSubscriber(t, redisdelay.SubscriberConfig{
		Client: b.client, MaxInFlight: 10, LeaseDuration: 300 * time.Millisecond, CloseTimeout: closeTimeout,
	})
	var err error
	b.publisher, err = redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: b.client, CloseTimeout: closeTimeout}, nil)
	require.NoError(t, err)
	b.messages, err = b.subscriber.Subscribe(context.Background(), "t")
	require.NoError(t, err)
	b.publish(20)
}

// close closes it, and returns how long each took.
func (b *bench) close() map[string]time.Duration {
	b.t.Helper()
	took := map[string]time.Duration{}
	for what, end := range map[string]func() error{"Subscriber": b.subscriber.Close, "Publisher": b.publisher.Close} {
		began := time.Now()
		_ = end() // an error tells what did not reach Redis
		took[what] = time.Since(began)
		require.Less(b.t, took[what], closeTimeout+2*time.Second, what) // a second, and one of a busy machine
	}
	return took
}

// goroutines are the stacks of those that were started under a label.
func goroutines(label string) (stacks []string) {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf(`"test":%q`, label)) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func (b *bench) publish(n int) {
	b.t.Helper()
	for i := range n {
		require.NoError(b.t, b.publisher.Publish("t", message.NewMessage(fmt.Sprint(i), nil)))
	}
}

// blocks runs what must end when the bench is closed.
func (b *bench) blocks(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	b.t.Cleanup(func() { <-done })
}

func TestCloseWhileBlocked(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]func(b *bench){
		"nobody takes the messages": func(*bench) {},
		"handlers do not end":       func(b *bench) { <-b.messages; <-b.messages },
		"handlers end late": func(b *bench) {
			msg := <-b.messages
			time.AfterFunc(closeTimeout*3, func() { msg.Ack() })
		},
		"the network brings nothing":           func(b *bench) { <-b.messages; b.network.Stall() },
		"the network brings no answer to acks": func(b *bench) { b.network.SwallowSilently(100, faulttest.Script("ack")); (<-b.messages).Ack() },
		"the network brings no answer to claims": func(b *bench) {
			b.network.SwallowSilently(100, faulttest.Script("claim"))
			b.blocks(func() {
				for msg := range b.messages {
					msg.Ack()
				}
			})
			require.Eventually(b.t, func() bool { return b.network.Swallowed() > 0 }, time.Minute, time.Millisecond)
		},
		"the network brings no answer to looks": func(b *bench) {
			b.network.SwallowSilently(100, faulttest.Script("promote"))
			msg := message.NewMessage("later", nil)
			redisdelay.DelayFor(msg, time.Millisecond)
			require.NoError(b.t, b.publisher.Publish("t", msg))
		},
		"the server is gone":   func(b *bench) { <-b.messages; b.server.Kill() },
		"the server is frozen": func(b *bench) { <-b.messages; b.server.Pause() },
		"Publish has no answer": func(b *bench) {
			b.network.SwallowSilently(100, faulttest.Script("publish"))
			for range 5 { // one on its way, the others wait
				b.blocks(func() { _ = b.publisher.Publish("t", message.NewMessage("x", nil)) })
			}
		},
		"Subscribe has no answer": func(b *bench) {
			b.network.SwallowSilently(100, faulttest.Script("register"))
			b.blocks(func() { _, _ = b.subscriber.Subscribe(context.Background(), "other") })
		},
		"a scheduler has no answer": func(b *bench) {
			alone, err := scheduler.New(scheduler.Config{Client: b.client}, nil)
			require.NoError(b.t, err)
			running, stop := context.WithCancel(context.Background())
			b.network.Stall()
			b.blocks(func() { _ = alone.Run(running) })
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "Close returns within CloseTimeout and a second, leaves no goroutine behind, and the caller's client open")
			b := newBench(t)
			var took map[string]time.Duration
			pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) {
				b.open()
				block(b)
				require.NotEmpty(t, goroutines(t.Name()))
				took = b.close()
			})
			b.network.Resume()
			select {
			case _, open := <-b.messages:
				for open {
					_, open = <-b.messages
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the channel of messages stays open")
			}
			require.NotErrorIs(t, b.client.Ping(t.Context()).Err(), redis.ErrClosed)
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				left := goroutines(t.Name())
				if len(left) == 0 {
					break
				}
				require.Less(t, time.Since(began), clientGivesUp, "goroutines are left:\n%s", strings.Join(left, "\n\n"))
			}
			faulttest.Report(t, fmt.Sprintf("Subscriber %v, Publisher %v", took["Subscriber"].Round(time.Millisecond), took["Publisher"].Round(time.Millisecond)))
		})
	}
}
