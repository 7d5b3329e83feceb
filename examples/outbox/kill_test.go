package main

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// steps are those after which kill -9 ends the process, and whether Redis has the reminder then.
var steps = map[string]bool{
	"order written":      false,
	"reminder written":   false,
	"order committed":    false,
	"row read":           false,
	"reminder in Redis":  true,
	"reminder delivered": true,
	"mail written":       true,
	"mail committed":     true,
}

// child places an order and runs the program, in a process that ends itself at a step.
func child() {
	w, err := open(context.Background(), os.Getenv("OUTBOX_SCHEMA"), os.Getenv("OUTBOX_PREFIX"), os.Getenv("OUTBOX_REDIS"))
	check(err)
	w.at = func(step string) {
		if step == os.Getenv("OUTBOX_CHILD") {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	_, err = w.live(context.Background(), time.Second, func() {})
	check(err)
	os.Exit(0)
}

// A process is killed at each step. The customer, who may have got no answer, places the order
// again, and another process goes on.
func TestKillAtEachStepLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for step, inRedis := range steps {
		t.Run(step, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world, _ message.Publisher) {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				binary, err := os.Executable()
				require.NoError(t, err)
				killed := exec.CommandContext(ctx, binary)
				killed.Env = append(os.Environ(), "OUTBOX_CHILD="+step, "OUTBOX_SCHEMA="+w.schema, "OUTBOX_PREFIX="+w.prefix,
					"OUTBOX_REDIS="+w.redis.(*redis.Client).Options().Addr)
				out, err := killed.CombinedOutput()
				require.ErrorContains(t, err, "signal: killed", "%s", out)
				require.NoError(t, ctx.Err())
				before, err := w.redis.Exists(ctx, w.prefix+":{"+reminders+"}:messages").Result()
				require.NoError(t, err)
				require.Equal(t, inRedis, before == 1)

				running, end := context.WithCancel(ctx)
				ended := make(chan struct{})
				var p *program
				go func() {
					defer close(ended)
					p, err = w.live(running, time.Second, func() {})
				}()
				settled := func() bool {
					stats, err := newAdmin(t, w).Stats(ctx, reminders)
					if err != nil || len(stats.Groups) != 1 || w.count(`"watermill_outbox"`) != 0 {
						return false
					}
					g := stats.Groups[0]
					return stats.Waiting+g.Ready+g.InHand+g.Retrying == 0 && w.count("mails") > 0
				}
				require.Eventually(t, settled, 20*time.Second, 20*time.Millisecond)
				end()
				<-ended
				require.NoError(t, err)
				require.Equal(t, 1, w.count("orders"))
				require.Equal(t, 1, w.count("mails"), "mails")
				require.LessOrEqual(t, p.calls.Load(), int64(1), "the reminder is in Redis once")
			})
		})
	}
}

// A router that is closed in the middle, as in a deploy, leaves the rest in the outbox.
func TestAShutdownInTheMiddleLosesNothing(t *testing.T) {
	worlds(t, func(t *testing.T, w *world, _ message.Publisher) {
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			require.NoError(t, w.place(context.Background(), id, time.Hour))
		}
		program := &program{shop: w.shop, redis: w.redis, prefix: w.prefix}
		published := 0
		var closing sync.WaitGroup
		w.at = func(step string) {
			if step == "reminder in Redis" {
				if published++; published == 2 {
					closing.Go(func() { _ = program.router.Close() })
					time.Sleep(50 * time.Millisecond) // until it is closing
				}
			}
		}
		require.NoError(t, program.run(context.Background()))
		closing.Wait()
		stats, err := newAdmin(t, w).Stats(context.Background(), reminders)
		require.NoError(t, err)
		require.Less(t, stats.Waiting, 5)

		w.at = nil
		running, end := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- program.run(running) }()
		require.Eventually(t, func() bool { return w.count(`"watermill_outbox"`) == 0 }, 20*time.Second, 10*time.Millisecond)
		end()
		require.NoError(t, <-ended)
		stats, err = newAdmin(t, w).Stats(context.Background(), reminders)
		require.NoError(t, err)
		require.Equal(t, 5, stats.Waiting)
	})
}

// Redis is away for longer than AckDeadline, so the Forwarder nacks what it cannot publish.
func TestALongOutageOfRedisLosesNothing(t *testing.T) {
	worlds(t, func(t *testing.T, w *world, _ message.Publisher) {
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			require.NoError(t, w.place(context.Background(), id, time.Hour))
		}
		config, deadline := rowsConfig(), 100*time.Millisecond
		config.AckDeadline, config.ResendInterval = &deadline, 10*time.Millisecond
		rows, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(w.db), config, nil)
		require.NoError(t, err)
		messages, err := rows.Subscribe(context.Background(), outbox)
		require.NoError(t, err)
		for range 2 {
			(<-messages).Ack()
		}
		away := time.After(5 * deadline)
		for back := false; !back; {
			select {
			case msg := <-messages:
				msg.Nack()
			case <-away:
				back = true
			}
		}
		require.NoError(t, rows.Close())
		require.Equal(t, 3, w.count(`"watermill_outbox"`))
	})
}

func newAdmin(t *testing.T, w *world) *admin.Admin {
	t.Helper()
	a, err := admin.New(admin.Config{Client: w.redis, KeyPrefix: w.prefix})
	require.NoError(t, err)
	return a
}
