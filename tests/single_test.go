package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func init() {
	children["active consumer"] = func() int { return activeChild(inTurns) }
	children["active consumer with a long lease"] = func() int { return activeChild(inLongTurns) }
}

// inTurns has one subscription of the group get messages, one at a time, in strict order.
func inTurns(c *redisdelay.SubscriberConfig) {
	ofCrashLease(c)
	c.SingleActive = true
	c.MaxDeliveries = -1
	c.Backoff = func(int) time.Duration { return 0 }
}

// inLongTurns is the same with a lease that no test waits for.
func inLongTurns(c *redisdelay.SubscriberConfig) {
	inTurns(c)
	c.LeaseDuration = time.Minute
}

// fence is a resource outside that takes a message with an epoch, unless it has seen a higher one.
var fence = redis.NewScript(`
	if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or 0) then return 0 end
	redis.call('SET', KEYS[1], ARGV[1])
	redis.call('RPUSH', KEYS[2], ARGV[2])
	return 1`)

// activeChild passes each message to the fenced resource, and acks most. It says which messages it
// got. It closes when it is told to by a signal.
func activeChild(change func(*redisdelay.SubscriberConfig)) int {
	client := childClient()
	subscriber := childSubscriber(change)
	messages, err := subscriber.Subscribe(context.Background(), topic)
	orDie(err)
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt)
	go func() {
		<-told
		orDie(subscriber.Close())
	}()
	for msg := range messages {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Println(msg.UUID, time.Now().UnixMicro())
		if msg.UUID == "held" && !delivery.Redelivered {
			select {}
		}
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		taken, err := fence.Run(context.Background(), client, []string{"fence", "taken"}, delivery.Epoch, msg.UUID).Int()
		if err != nil || taken == 0 || rand.IntN(10) == 0 {
			msg.Nack()
			continue
		}
		msg.Ack()
	}
	fmt.Println("closed")
	return 0
}

// close ends the child as its supervisor would.
func (c *child) close() { _ = c.cmd.Process.Signal(os.Interrupt) }

// killUnheard kills the child, and waits until the server knows that it listens no more.
func (c *child) killUnheard() {
	heard := func() int { return len(c.client.PubSubChannels(context.Background(), "*").Val()) }
	before := heard()
	c.kill()
	require.Eventually(c.t, func() bool { return heard() < before }, patience, time.Millisecond)
}

// awaitTurns waits until the group has an active subscription, and as many standbys.
func awaitTurns(t testing.TB, client redis.UniversalClient, standbys int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		active := client.HGet(t.Context(), keys.Active(), redisdelay.DefaultConsumerGroup).Val()
		return active != "" && !strings.HasPrefix(active, "-") &&
			client.ZCard(t.Context(), keys.Standby(redisdelay.DefaultConsumerGroup)).Val() == standbys
	}, patience, time.Millisecond)
}

// A second process takes over, however the first one ends: with a message in hand, or idle. If the
// first one closes, or the server knows that it listens no more, the second one does not wait for a
// lease, so the lease is a long one.
func TestStandbyTakesOver(t *testing.T) {
	const held, idle = true, false
	const short, long = "active consumer", "active consumer with a long lease"
	for name, c := range map[string]struct {
		role   string
		ends   func(c *child)
		held   bool
		within time.Duration
	}{
		"the active one is killed in its handler":    {short, (*child).kill, held, crashLease + 100*time.Millisecond},
		"the active one is frozen in its handler":    {short, func(c *child) { c.freeze() }, held, crashLease + 100*time.Millisecond},
		"the active one is killed while it is idle":  {long, (*child).killUnheard, idle, 100 * time.Millisecond},
		"the active one is frozen while it is idle":  {short, func(c *child) { c.freeze() }, idle, crashLease + 100*time.Millisecond},
		"the active one closes while it is idle":     {long, func(c *child) { c.close(); c.rest() }, idle, 50 * time.Millisecond},
		"the active one closes and messages come in": {long, (*child).close, idle, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client(t)
			publisher := newPublisher(t, on(t, client))
			first := startChild(t, server, c.role)
			first.awaitSubscribed()
			second := startChild(t, server, c.role)
			awaitTurns(t, client, 1)
			require.Eventually(t, func() bool { // the other one watches the scheduler
				return client.HExists(t.Context(), keys.Scheduler(), "standby").Val()
			}, patience, time.Millisecond)
			if c.held {
				publish(t, publisher, "held", 0)
				require.Equal(t, "held", strings.Fields(first.line())[0])
				publish(t, publisher, "next", 0)
			}
			began := time.Now()
			c.ends(first)
			if !c.held {
				began = time.Now()
				publish(t, publisher, "next", 0)
			}
			got, stop := context.WithCancel(t.Context())
			var more sync.WaitGroup
			more.Go(func() { // one that closes may still get some
				for got.Err() == nil {
					time.Sleep(10 * time.Millisecond)
					_ = publisher.Publish(topic, newMessage("next", 0))
				}
			})
			defer more.Wait()
			defer stop()
			line := strings.Fields(second.line())
			us, err := strconv.ParseInt(line[1], 10, 64)
			require.NoError(t, err)
			if c.held {
				require.Equal(t, "held", line[0], "what the other one held comes first")
			} else {
				require.Equal(t, "next", line[0])
			}
			took := time.UnixMicro(us).Sub(began)
			t.Logf("took over within %v, want %v on a quiet machine", took, c.within)
			require.Less(t, took, c.within+2*time.Second)
		})
	}
}

// Three processes are killed, frozen and closed at random, and Redis restarts, while messages come.
func TestOrderHoldsOverRandomEndsOfProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.Client(t)
	publisher := newPublisher(t, on(t, client))
	require.NoError(t, newSubscriber(t, on(t, client), inTurns).SubscribeInitialize(topic))
	const count, rounds, processes = 1500, 12, 3

	var all []*child
	begin := func() *child {
		c := startChild(t, server, "active consumer")
		go c.rest() // or its output would be full
		return c
	}
	for range processes {
		all = append(all, begin())
	}
	published := 0
	more := func(upTo int) {
		for published < upTo {
			var batch []*message.Message
			for range min(10, upTo-published) {
				batch = append(batch, newMessage(strconv.Itoa(published), time.Duration(rand.IntN(2))*20*time.Millisecond))
				published++
			}
			for _, msg := range batch[1:] { // those of a call are due together, so they keep its order
				msg.Metadata = maps.Clone(batch[0].Metadata)
			}
			require.NoError(t, publisher.Publish(topic, batch...))
			time.Sleep(25 * time.Millisecond) // one call's messages are due before the next one's
		}
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { // no two owners have leases at one time
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			owners := map[string]bool{}
			for _, token := range client.HVals(context.Background(), keys.Leases(redisdelay.DefaultConsumerGroup)).Val() {
				owner, _, _ := strings.Cut(token, ":")
				owners[owner] = true
			}
			if len(owners) > 1 {
				t.Errorf("several subscriptions have leases: %v", owners)
			}
		}
	})
	for round := range rounds {
		more(count * (round + 1) / (rounds + 1))
		i := rand.IntN(processes)
		switch rand.IntN(4) {
		case 0:
			all[i].kill()
			all[i] = begin()
		case 1:
			thaw := all[i].freeze()
			time.AfterFunc(crashLease+time.Duration(rand.IntN(500))*time.Millisecond, thaw)
		case 2:
			all[i].close()
			all[i] = begin()
		default:
			server.Kill()
			server.Restart()
		}
	}
	more(count)
	require.Eventually(t, func() bool { return !exists(t, client, keys.Messages()) }, 2*patience, 10*time.Millisecond)
	close(stop)
	watching.Wait()
	last, again := -1, 0
	for _, uuid := range client.LRange(t.Context(), "taken", 0, -1).Val() {
		n, err := strconv.Atoi(uuid)
		require.NoError(t, err)
		if n == last {
			again++
			continue
		}
		require.Equal(t, last+1, n, "out of order")
		last = n
	}
	require.Equal(t, count-1, last, "lost")
	t.Logf("%d messages, %d of them again", count, again)
	for _, c := range all {
		c.kill()
	}
	queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
}

// handled is what the subscriptions of a group with SingleActive have handled, in order.
type handled struct {
	mu      sync.Mutex
	current context.Context // of the message in hand; nil: none
	numbers []int
	holder  int // which subscription handled the last one
	faults  []string
}

// all handles what the subscription i brings. Nobody else may have a message in hand, unless its
// context has ended.
func (h *handled) all(i int, messages <-chan *message.Message) {
	for msg := range messages {
		n, _ := strconv.Atoi(msg.UUID)
		h.mu.Lock()
		if h.current != nil && h.current.Err() == nil {
			h.faults = append(h.faults, fmt.Sprintf("%d was handed out while another one was in hand", n))
		}
		h.current = msg.Context()
		h.mu.Unlock()
		time.Sleep(time.Millisecond)
		h.mu.Lock()
		if h.current == msg.Context() {
			h.current = nil
		}
		h.numbers = append(h.numbers, n)
		h.holder = i
		h.mu.Unlock()
		msg.Ack()
	}
}

// last returns the highest number, and who handled the last message.
func (h *handled) last() (highest, holder int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Max(append(h.numbers, -1)), h.holder
}

// A failover may lose acks. Then their messages come again, and those behind them too: no message
// passes another that was not handled before.
func TestOrderHoldsOverAFailover(t *testing.T) {
	t.Parallel()
	primary, others := redistest.StartReplicated(t, 2)
	sentinels := redistest.StartSentinels(t, primary, others...)
	connect := func() redis.UniversalClient {
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.PrimaryName, SentinelAddrs: sentinels})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	client := connect()
	publisher := newPublisher(t, on(t, connect()))
	replicated := testkit.Closes(t, testkit.NewPublisher(t, on(t, connect()), func(c *redisdelay.PublisherConfig) { c.WaitReplicas = 1 }))
	const count, processes = 900, 3
	var h handled
	ends := make([]context.CancelFunc, processes)
	for i := range processes {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends[i] = cancel
		messages, err := newSubscriber(t, on(t, connect()), inTurns).Subscribe(ctx, topic)
		require.NoError(t, err)
		go h.all(i, messages)
	}
	awaitTurns(t, client, processes-1)
	published := 0
	more := func(publisher message.Publisher, upTo int) {
		var batch []*message.Message
		for ; published < upTo; published++ {
			batch = append(batch, newMessage(strconv.Itoa(published), 0))
		}
		var err error
		require.Eventually(t, func() bool { // the old primary may have been fast, and no new one be there yet
			err = publisher.Publish(topic, batch...)
			return err == nil || errors.Is(err, redisdelay.ErrMaybePublished)
		}, 2*patience, 10*time.Millisecond)
		require.NoError(t, err)
	}
	reaches := func(n int) (holder int) {
		t.Helper()
		require.Eventually(t, func() bool {
			highest, i := h.last()
			holder = i
			return highest >= n
		}, 2*patience, time.Millisecond)
		return holder
	}

	more(replicated, count/3)
	reaches(count / 9)
	primary.Kill()
	reaches(count/3 - 1) // by the new primary
	more(publisher, 2*count/3)
	ends[reaches(count/2)]()
	more(publisher, count)
	reaches(count - 1)
	require.Eventually(t, func() bool { return !exists(t, client, keys.Messages()) }, 2*patience, 10*time.Millisecond)

	require.Empty(t, h.faults)
	next, back := 0, 0
	for i, n := range h.numbers {
		require.LessOrEqual(t, n, next, "it passed another one")
		if i > 0 && n < h.numbers[i-1] {
			back++
		}
		next = max(next, n+1)
	}
	t.Logf("%d messages, %d handled, %d times back to an earlier one", count, len(h.numbers), back)
	require.LessOrEqual(t, back, 2)
	queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
}
