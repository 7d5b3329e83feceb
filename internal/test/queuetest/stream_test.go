package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestDamageOfATopicWithAStreamIsFound(t *testing.T) {
	for name, damage := range map[string]struct {
		do    func(c redis.UniversalClient, k queue.Keys) error
		found string // "": it is whole
	}{
		"none": {func(redis.UniversalClient, queue.Keys) error { return nil }, ""},
		"paused, and nothing to look at": {func(c redis.UniversalClient, k queue.Keys) error {
			c.HDel(ctx, k.Scheduler(), "next")
			return c.HSet(ctx, k.Paused(), "", 1).Err()
		}, ""},
		"nothing to look at": {func(c redis.UniversalClient, k queue.Keys) error {
			return c.HDel(ctx, k.Scheduler(), "next").Err()
		}, "it has no next event"},
		"a group more": {func(c redis.UniversalClient, k queue.Keys) error {
			return c.HSet(ctx, k.Groups(), "a", "-1 -1 -1").Err()
		}, "it has a stream, and the groups"},
		"no length": {func(c redis.UniversalClient, k queue.Keys) error {
			return c.HSet(ctx, k.Meta(), "maxlen", "long").Err()
		}, `maxlen is "long", not a number`},
		"the layout of another topic": {func(c redis.UniversalClient, k queue.Keys) error {
			return c.HSet(ctx, k.Meta(), "layout", queue.Layout).Err()
		}, `unknown field "maxlen"`},
		"something ready": {func(c redis.UniversalClient, k queue.Keys) error {
			return c.RPush(ctx, k.Ready(queue.StreamGroup), "x").Err()
		}, "it has a stream, and "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				topic := queue.NewStreamTopic(servers.MustClient(s.Client), s.Prefix, s.Prefix+"-topic", queue.StreamOptions{Retention: time.Hour})
				id, err := queue.NewIDs().Next(time.Now())
				require.NoError(t, err)
				m := queue.Message{ID: id, Due: queue.In(time.Hour), Body: []byte("0 0 "),
					Options: queue.Options{DelayID: "x", Expiry: queue.Expiry{At: time.Now(), Lateness: time.Second, Dead: true}}}
				require.NoError(t, topic.Publish(ctx, "PUBLISHER", 1, []queue.Message{m}))
				require.NoError(t, damage.do(s.Client, queue.NewKeys(s.Prefix, topic.Name)))
				found, err := Violations(ctx, s.Client, s.Prefix)
				require.NoError(t, err)
				if damage.found == "" {
					require.Empty(t, found)
				} else {
					require.Contains(t, strings.Join(found, "\n"), damage.found)
				}
			})
		})
	}
}
