package rights_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var ctx = context.Background()

func topicOf(client redis.UniversalClient, prefix, name string) *queue.Topic {
	return queue.NewTopic(servers.MustClient(client), prefix, name)
}

// world is a topic on one Redis.
type world struct {
	redistest.Server
	t     *testing.T
	topic *queue.Topic
}

// newWorld returns a world whose topic has the groups.
func newWorld(t *testing.T, s redistest.Server, groups ...string) *world {
	t.Helper()
	w := &world{Server: s, t: t, topic: topicOf(s.Client, s.Prefix, "topic")}
	for _, group := range groups {
		require.NoError(t, w.topic.Register(ctx, group, queue.GroupOptions{}))
	}
	return w
}

// unchanged requires that f changes nothing under the prefix.
func (w *world) unchanged(f func()) {
	w.t.Helper()
	before := w.content()
	f()
	require.Equal(w.t, before, w.content())
}

// content is all that there is under the prefix, by key.
func (w *world) content() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for it := w.Client.Scan(ctx, 0, w.Prefix+"*", 1000).Iterator(); it.Next(ctx); {
		key := it.Val()
		var content any
		var err error
		switch typ := w.Client.Type(ctx, key).Val(); typ {
		case "string":
			content, err = w.Client.Get(ctx, key).Result()
		case "list":
			content, err = w.Client.LRange(ctx, key, 0, -1).Result()
		case "hash":
			content, err = w.Client.HGetAll(ctx, key).Result() // fmt sorts it
		case "zset":
			content, err = w.Client.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "set":
			var members []string
			members, err = w.Client.SMembers(ctx, key).Result()
			slices.Sort(members)
			content = members
		default:
			w.t.Fatalf("%s is a %s", key, typ)
		}
		require.NoError(w.t, err)
		all[key] = fmt.Sprintf("%v, expires: %t", content, w.Client.PTTL(ctx, key).Val() >= 0)
	}
	return all
}
