package wake_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// settled is the result of a Settle.
type settled struct {
	next   time.Time
	others []string
	err    error
}

func settle(ctx context.Context, c wake.Clock) chan settled {
	out := make(chan settled, 1)
	go func() {
		next, others, err := wake.Settle(ctx, c)
		out <- settled{next, others, err}
	}()
	return out
}

func TestSettleWaitsForAllReceiversOfTheServer(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	s := redistest.Server{Client: client, Prefix: "own"}
	own := redis.NewClient(client.(*redis.Client).Options())
	defer own.Close()
	one, two := mailbox(t, s), mailbox(t, redistest.Server{Client: own, Prefix: "own"})
	_, elsewhere := redistest.Embedded(t)
	other := queuetest.Receive(t, mailbox(t, redistest.Server{Client: elsewhere, Prefix: "own"}))
	other.Connected(elsewhere)
	asked := make(chan func(time.Time), 9)
	for _, m := range []*wake.Mailbox{one, two} {
		defer m.Receive(queue.NewTopic(servers.MustClient(client), "own", "t"), func(_ string, settled func(time.Time)) {
			if settled != nil {
				asked <- settled
			}
		}).Stop()
	}

	begin := time.Now()
	result := settle(ctx, wake.Clock{Addr: mini.Addr(), Channels: []string{"other process"}, Moved: 24 * time.Hour})
	(<-asked)(begin.Add(time.Minute))
	last := <-asked
	require.Empty(t, result)
	for _, m := range []*wake.Mailbox{one, two} {
		require.WithinRange(t, m.Now(), begin.Add(24*time.Hour), time.Now().Add(24*time.Hour))
	}
	last(begin.Add(time.Second))
	require.Equal(t, settled{next: begin.Add(time.Second), others: []string{"other process"}}, <-result)
	require.Empty(t, other.Woken, "it is on another server")

	result = settle(ctx, wake.Clock{Addr: mini.Addr()})
	for range 2 {
		(<-asked)(time.Time{})
	}
	require.Equal(t, settled{}, <-result)

	short, cancel := context.WithCancel(ctx)
	result = settle(short, wake.Clock{Addr: mini.Addr()})
	(<-asked)(time.Time{})
	cancel()
	err := (<-result).err
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, `topics "t"`)
}

// A client may reach the server by another address.
func TestSettleFindsAServerByItsChannels(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	m := mailbox(t, redistest.Server{Client: client, Prefix: "own"})
	r := queuetest.Receive(t, m)
	r.Connected(client)
	require.Equal(t, settled{}, <-settle(ctx, wake.Clock{Addr: "elsewhere", Channels: []string{r.Channel()}, Moved: time.Hour}))
	r.Gets("")
	require.Greater(t, time.Until(m.Now()), 59*time.Minute)
}

func TestSettleWithoutReceiversReturnsAtOnce(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	m := mailbox(t, redistest.Server{Client: client, Prefix: "own"})
	require.Equal(t, settled{}, <-settle(ctx, wake.Clock{Addr: mini.Addr(), Moved: time.Hour}))
	require.Greater(t, time.Until(m.Now()), 59*time.Minute)
}

// Anybody may publish, and so have all receivers look.
func TestAMessageToAllWakesAllReceivers(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		m := mailbox(t, s)
		one, two := queuetest.Receive(t, m), queuetest.Receive(t, m)
		one.Connected(s.Client)
		for range 3 {
			post(t, s, one.Channel(), "*")
			one.Gets("")
			two.Gets("")
		}
	})
}
