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
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// go-redis sets no error on the commands of a pipeline if no connection can be made.
func TestExtensionThatWasNotSentIsNotRecordedAsDone(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{
		MaxRetries: 1,
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF },
	})
	held := []*queue.Leased{{ID: "id", Token: "S:1:1"}}
	kinds := noted(t, client, "p", func(group *queue.Group) {
		calls := append(group.ReleaseCalls(held, false), group.ExtendCalls(held, time.Second)...)
		require.Error(t, queue.Do(t.Context(), servers.MustClient(client), calls...))
	})
	require.Equal(t, []Kind{Settle, Extend, Unsure, Unsure}, kinds)
}

// The server has the message under another lease.
func TestExtensionOfALostLeaseIsNotRecordedAsDone(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := redis.NewClient(s.Client.(*redis.Client).Options())
		leases := queue.NewKeys(s.Prefix, "t").Leases("g")
		require.NoError(t, client.HSet(t.Context(), leases, "id", "S:2:1", "other", "S:1:1").Err())
		held := []*queue.Leased{{ID: "id", Token: "S:1:1"}, {ID: "other", Token: "S:1:1"}}
		unseen := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, "t").Group("g") // loads the script on the server
		require.NoError(t, queue.Do(t.Context(), servers.MustClient(s.Client), unseen.ExtendCalls(held, time.Second)...))
		kinds := noted(t, client, s.Prefix, func(group *queue.Group) {
			require.NoError(t, queue.Do(t.Context(), servers.MustClient(client), group.ExtendCalls(held, time.Second)...))
		})
		require.Equal(t, []Kind{Extend, Extend, Lost, Extended}, kinds)
	})
}

// noted returns the events of calls about a group, and closes the client.
func noted(t *testing.T, client *redis.Client, prefix string, do func(*queue.Group)) (kinds []Kind) {
	t.Helper()
	dir := t.TempDir()
	journal, err := OpenJournal(dir, "consumer")
	require.NoError(t, err)
	client.AddHook(&wire{journal: journal, clock: func() int64 { return 1 }, tokens: &tokens{}})
	do(queue.NewTopic(servers.MustClient(client), prefix, "t").Group("g"))
	require.NoError(t, client.Close())
	require.NoError(t, journal.Close())

	h := history{reader: reader{dir: dir}}
	events, err := h.now()
	require.NoError(t, err)
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}
