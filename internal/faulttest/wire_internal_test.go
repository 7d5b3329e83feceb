package faulttest

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// go-redis tells the commands of a pipeline nothing where every attempt to connect is refused. Then nobody has said that
// a lease was extended.
func TestExtensionThatNeverLeftIsNotNotedAsDone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	journal, err := OpenJournal(dir, "consumer")
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{
		MaxRetries: 1,
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF },
	})
	client.AddHook(&wire{journal: journal, clock: func() int64 { return 1 }, tokens: &tokens{}})
	group := queue.NewTopic(client, "p", "t").Group("g")
	held := []*queue.Leased{{ID: "id", Token: "S:1:1"}}
	calls := append(group.ReleaseCalls(held), group.ExtendCalls(held, time.Second)...)
	require.Error(t, queue.Do(t.Context(), client, calls...))
	require.NoError(t, client.Close())
	require.NoError(t, journal.Close())

	h := history{reader: reader{dir: dir}}
	events, err := h.now()
	require.NoError(t, err)
	var kinds []Kind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []Kind{Settle, Extend, Unsure, Unsure}, kinds)
}
