package partition_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// The number of partitions is read when Close begins, and comes 300 ms late. The subscriptions have
// ended by then.
func TestCloseWaitsForACallThatIsLate(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		set(t, s, 2, 0, 0)
		s = process(t, s)
		reads, goOn := make(chan struct{}, 100), make(chan struct{})
		var late atomic.Bool
		s.Client.(*redis.Client).AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if late.Load() && strings.Contains(fmt.Sprint(cmds), "partition") {
				reads <- struct{}{}
				<-goOn
			}
			return next()
		}))
		one := newSubscriber(t, s, 2, func(c *partition.SubscriberConfig) { c.Partitions = 0 })
		one.Follow(time.Millisecond)
		messages := testkit.SubscribeTo(t, one, topic)
		late.Store(true)
		testkit.Wait(t, reads, "a look at the number of partitions")
		time.AfterFunc(300*time.Millisecond, func() { close(goOn) })
		require.NoError(t, one.Close())
		select {
		case _, open := <-messages:
			require.False(t, open)
		default:
			require.Fail(t, "Close has left the channel open")
		}
	})
}
