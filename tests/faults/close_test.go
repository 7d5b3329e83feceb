package faults

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const (
	closeTimeout = 500 * time.Millisecond
	// clientGivesUp is after when go-redis returns from a call that has no answer: four tries of 3
	// s, and pauses. Callers who are in Subscribe are in such a call. Others are given up by Close,
	// and return when the one try is over: that to connect, the one to call, and two seconds for a
	// busy machine.
	clientGivesUp = 20 * time.Second
	tryEnds       = 3*time.Second + 3*time.Second + 2*time.Second
)

// bench is a subscriber and a publisher behind a network, which are about to be closed.
type bench struct {
	t          *testing.T
	server     *redistest.Instance
	network    *faulttest.Proxy
	direct     redis.UniversalClient
	client     redis.UniversalClient
	subscriber *redisdelay.Subscriber
	publisher  *redisdelay.Publisher
	messages   <-chan *message.Message
}

// newBench starts what is not the project's, and has the rest start in goroutines that are known by
// the test's name.
func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, server: redistest.Start(t)}
	b.direct = b.server.Client(t)
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

// close closes it, and returns how long each took, and what the Subscriber said.
func (b *bench) close() (took map[string]time.Duration, said error) {
	b.t.Helper()
	took = map[string]time.Duration{}
	for what, end := range map[string]func() error{"Subscriber": b.subscriber.Close, "Publisher": b.publisher.Close} {
		began := time.Now()
		err := end() // which tells what did not reach Redis
		took[what] = time.Since(began)
		if what == "Subscriber" {
			said = err
		}
		require.Less(b.t, took[what], closeTimeout+2*time.Second, what) // a second, and one of a busy machine
	}
	return took, said
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

// until waits for what shows that something is blocked.
func (b *bench) until(holds func() bool) {
	b.t.Helper()
	faulttest.Eventually(b.t, holds, time.Minute, time.Millisecond)
}

// loses has a script's replies get lost, its connections stay, and waits until that has met what
// begins then.
func (b *bench) loses(script string, begin func()) {
	b.t.Helper()
	b.network.SwallowSilently(100, faulttest.Script(script))
	begin()
	b.until(func() bool { return b.network.Swallowed() > 0 })
}

// exhaust has the caller take all connections of the client.
func (b *bench) exhaust() {
	b.t.Helper()
	client := b.client.(*redis.Client)
	size := client.Options().PoolSize
	for range size {
		go func() {
			pprof.SetGoroutineLabels(context.Background()) // it is the caller's
			for !errors.Is(client.BLPop(context.Background(), 0, "nothing").Err(), redis.ErrClosed) {
			}
		}()
	}
	b.until(func() bool {
		return strings.Contains(b.direct.Info(b.t.Context(), "clients").Val(), fmt.Sprintf("blocked_clients:%d\r\n", size))
	})
}

// claimed tells whether the subscriber has leased messages.
func (b *bench) claimed() bool {
	return b.direct.HLen(b.t.Context(), queue.NewKeys(redisdelay.DefaultKeyPrefix, "t").Leases(redisdelay.DefaultConsumerGroup)).Val() > 0
}

func TestCloseWhileBlocked(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]func(b *bench){
		"nobody takes the messages": func(b *bench) { b.until(b.claimed) },
		"handlers do not end":       func(b *bench) { <-b.messages; <-b.messages },
		"handlers end late": func(b *bench) {
			msg := <-b.messages
			time.AfterFunc(closeTimeout*3, func() { msg.Ack() })
		},
		"the network brings nothing": func(b *bench) {
			<-b.messages
			b.network.Stall()
			b.until(func() bool { return b.network.Held() > 0 })
		},
		"the network brings no answer to acks":  func(b *bench) { b.loses("ack", func() { (<-b.messages).Ack() }) },
		"the network brings no answer to nacks": func(b *bench) { b.loses("nack", func() { (<-b.messages).Nack() }) },
		"the network brings no answer to extensions": func(b *bench) {
			b.loses("extend", func() { <-b.messages })
		},
		"the network brings no answer to what is given back": func(b *bench) {
			b.loses("release", func() { (<-b.messages).Ack() }) // what nobody takes then
		},
		"the network brings no answer to claims": func(b *bench) {
			b.loses("claim", func() {
				b.blocks(func() {
					for msg := range b.messages {
						msg.Ack()
					}
				})
			})
		},
		"the network brings no answer to looks": func(b *bench) {
			b.loses("promote", func() {
				msg := message.NewMessage("later", nil)
				redisdelay.DelayFor(msg, time.Millisecond)
				require.NoError(b.t, b.publisher.Publish("t", msg))
			})
		},
		"the server is gone": func(b *bench) {
			<-b.messages
			b.server.Kill()
			b.until(func() bool { return b.network.Missed() > 0 })
		},
		"the server is frozen": func(b *bench) {
			<-b.messages
			b.server.Pause()
			calls := b.network.Calls()
			b.until(func() bool { return b.network.Calls() > calls })
		},
		"Publish has no answer": func(b *bench) {
			b.loses("publish", func() {
				for range 5 { // one on its way, the others wait
					b.blocks(func() { _ = b.publisher.Publish("t", message.NewMessage("x", nil)) })
				}
			})
		},
		"all connections are taken": func(b *bench) {
			<-b.messages
			b.exhaust()
			b.blocks(func() { _ = b.publisher.Publish("t", message.NewMessage("x", nil)) })
			b.until(func() bool {
				return slices.ContainsFunc(goroutines(b.t.Name()), func(stack string) bool {
					return strings.Contains(stack, "(*Publisher).Publish") && strings.Contains(stack, "(*ConnPool)")
				})
			})
		},
		"Subscribe has no answer about its topic": func(b *bench) {
			b.loses("open", func() {
				b.blocks(func() { _, _ = b.subscriber.Subscribe(context.Background(), "other") })
			})
		},
		"Subscribe has no answer": func(b *bench) {
			b.loses("register", func() {
				b.blocks(func() { _, _ = b.subscriber.Subscribe(context.Background(), "other") })
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "Close returns within CloseTimeout and a second, leaves no goroutine behind, and the caller's client open")
			b := newBench(t)
			var took map[string]time.Duration
			var said error
			pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) {
				b.open()
				block(b)
				require.NotEmpty(t, goroutines(t.Name()))
				took, said = b.close()
			})
			switch name {
			case "the network brings no answer to acks", "the network brings no answer to nacks":
				require.Error(t, said, "Redis may not have heard what became of the messages")
			case "the network brings nothing", "the server is gone", "the server is frozen", "handlers do not end", "handlers end late", "nobody takes the messages":
				require.NoError(t, said, "handlers have settled nothing")
			}
			within := tryEnds
			if strings.HasPrefix(name, "Subscribe") {
				within = clientGivesUp
			}
			closed := time.Now()
			for left := goroutines(t.Name()); len(left) > 0; left = goroutines(t.Name()) {
				require.Less(t, time.Since(closed), within, "goroutines are left:\n%s", strings.Join(left, "\n\n"))
				time.Sleep(10 * time.Millisecond)
			}
			faulttest.Report(t, fmt.Sprintf("Subscriber %v, Publisher %v, the last goroutine ended %v later", took["Subscriber"].Round(time.Millisecond),
				took["Publisher"].Round(time.Millisecond), time.Since(closed).Round(time.Millisecond)))
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
		})
	}
}

func TestSchedulerEndsWhileBlocked(t *testing.T) {
	t.Parallel()
	within := map[string]time.Duration{"Scheduler": clientGivesUp, "Publisher with Stream": closeTimeout + 2*time.Second}
	for name, begin := range map[string]func(t *testing.T, client redis.UniversalClient) (end func()){
		"Scheduler": func(t *testing.T, client redis.UniversalClient) func() {
			alone, err := scheduler.New(scheduler.Config{Client: client}, nil)
			require.NoError(t, err)
			running, stop := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- alone.Run(running) }()
			return func() { stop(); <-done }
		},
		"Publisher with Stream": func(t *testing.T, client redis.UniversalClient) func() {
			publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
				Client: client, CloseTimeout: closeTimeout, Stream: &redisdelay.StreamConfig{},
			}, nil)
			require.NoError(t, err)
			return func() { _ = publisher.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "a scheduler of its own, and that of a Publisher with Stream, end while their calls have no answer: the first when the client gives up, the other within CloseTimeout and a second")
			network := faulttest.NewProxy(t, redistest.Start(t).Addr())
			client := network.Place().Client()
			t.Cleanup(func() { _ = client.Close() })
			end := begin(t, client)
			faulttest.Eventually(t, func() bool { return network.Calls() > 0 }, time.Minute, time.Millisecond)
			network.Stall()
			faulttest.Eventually(t, func() bool { return network.Held() > 0 }, time.Minute, time.Millisecond)
			began := time.Now()
			end()
			took := time.Since(began)
			require.Less(t, took, within[name])
			faulttest.Report(t, fmt.Sprintf("after %v", took.Round(time.Millisecond)))
		})
	}
}
