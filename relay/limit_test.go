package relay_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// A limit of the relay's group counts the messages of all processes, in whatever batches they go.
func TestARelayKeepsTheLimitOfItsGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		called, release := make(chan int), make(chan struct{})
		to := newDestination(func(_ string, messages []*message.Message) error {
			called <- len(messages)
			<-release
			return nil
		})
		const most, n = 3, 12
		limited := func(c *relay.Config) {
			c.Subscriber.AtOnce, c.BatchMessages = most, 2
		}
		run(t, newRelay(t, s, to, limited))
		run(t, newRelay(t, s, to, limited))
		eventually(t, func() bool { return s.Client.Exists(t.Context(), s.Prefix+":{"+topic+"}:meta").Val() > 0 }, "the relays run")
		all, names := numbered(n, 50*time.Millisecond)
		publish(t, newPublisher(t, s), topic, all...)
		for done := 0; done < n; {
			taken, calls := 0, 0
			for taken < most {
				taken += wait(t, called, "a call of Publish")
				calls++
			}
			require.Equal(t, most, taken)
			c := countsOf(t, s, topic)
			require.Equal(t, int64(most), c.InHand)
			require.Equal(t, int64(n-done-most), c.Ready)
			for range calls {
				release <- struct{}{}
			}
			done += most
		}
		came := uuids(to.await(t, n))
		slices.Sort(came)
		slices.Sort(names)
		require.Equal(t, names, came)
	})
}
