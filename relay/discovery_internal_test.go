package relay

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// topics is a destination that tells the topics of its messages.
type topics chan string

func (d topics) Publish(topic string, messages ...*message.Message) error {
	for range messages {
		d <- topic
	}
	return nil
}

func (d topics) Close() error { return nil }

// running returns the only Run of a new relay of all topics, which ends with the test.
func running(t *testing.T, s redistest.Server) (*run, topics) {
	t.Helper()
	to := make(topics, 100)
	r, err := New(Config{Subscriber: redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix}, Destination: to}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := testkit.Begin(func() error { return r.Run(ctx) })
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	channel := queue.NewTopics(s.Prefix, 0)
	testkit.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.runs) == 1 && s.Client.PubSubNumSub(t.Context(), channel).Val()[channel] > 0
	}, "it listens")
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.runs))[0], to
}

// goroutines counts the goroutines of the package.
func goroutines() int {
	all := make([]byte, 64<<20)
	return strings.Count(string(all[:runtime.Stack(all, true)]), "relay.(*run).serve.func")
}

// idle tells whether no name is checked.
func (d *discovery) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.candidates) == 0
}

func (r *run) topics() (names []string) {
	r.served.Range(func(name, _ any) bool { names = append(names, name.(string)); return true })
	return names
}

// Some are announced only, others are in the registry when the relay begins or come to it later.
func TestNamesWithoutATopicLeaveNothingBehind(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 1000
		name := func(kind string, i int) string { return fmt.Sprintf("bogus %s %d", kind, i) }
		do := func(each func(p redis.Pipeliner, i int)) {
			_, err := s.Client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range n {
					each(p, i)
				}
				return nil
			})
			require.NoError(t, err)
		}
		registry, channel := queue.Registry(s.Prefix), queue.NewTopics(s.Prefix, 0)
		do(func(p redis.Pipeliner, i int) { p.SAdd(t.Context(), registry, name("old", i)) })
		r, to := running(t, s)
		do(func(p redis.Pipeliner, i int) { p.Publish(t.Context(), channel, name("announced", i)) })
		do(func(p redis.Pipeliner, i int) {
			if i < 200 {
				p.SAdd(t.Context(), registry, name("new", i))
				p.Publish(t.Context(), channel, name("new", i))
			}
		})
		began := time.Now()
		testkit.Publish(t, testkit.NewPublisher(t, s), "real", message.NewMessage("1", nil))
		require.Equal(t, "real", testkit.Wait(t, to, "the message"))
		t.Log("the message came after ", time.Since(began))
		require.Less(t, goroutines(), 100)
		// Announced names are looked for some more times, as their topics may be in the making.
		r.discovery.mu.Lock()
		for _, c := range r.discovery.candidates {
			c.announced = false
		}
		r.discovery.mu.Unlock()
		testkit.Eventually(t, r.discovery.idle, "all names are checked")
		require.NoError(t, r.Ready())
		require.Equal(t, []string{"real"}, r.topics())
		require.NoError(t, s.Client.Del(t.Context(), registry).Err())
		require.NoError(t, s.Client.SAdd(t.Context(), registry, "real").Err())
	})
}

// Such names are checked again when they are announced.
func TestTopicThatIsMadeLongAfterItsNameIsRelayed(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		require.NoError(t, s.Client.SAdd(t.Context(), queue.Registry(s.Prefix), "late").Err())
		r, to := running(t, s)
		testkit.Eventually(t, func() bool { return r.Ready() == nil && r.discovery.idle() }, "it has no topic")
		require.Empty(t, r.topics())
		require.NoError(t, s.Client.SRem(t.Context(), queue.Registry(s.Prefix), "late").Err())
		testkit.Publish(t, testkit.NewPublisher(t, s), "late", message.NewMessage("1", nil))
		require.Equal(t, "late", testkit.Wait(t, to, "the message"))
	})
}
