package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestProblemsAreFoldedUnfoldedAndIgnored(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 200 {
				name := fmt.Sprintf("a%03d", i)
				k := queue.NewKeys(s.Prefix, name)
				p.SAdd(ctx, queue.Registry(s.Prefix), name)
				p.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x")
				p.HSet(ctx, k.Groups(), "g", "25 -1 -1")
				p.RPush(ctx, k.Ready("g"), fmt.Sprintf("01M7Y3SQGNBVX5P66MY8JV56FH:%d", time.Now().Add(-time.Hour).UnixMilli()))
			}
			return nil
		})
		require.NoError(t, err)
		s.die(20, 2)
		b := open(t, s.address)
		b.sees("got 20 dead letters in the last hour", "There are 200 groups without a subscriber. The worst: ")
		b.click("Show all 200")
		b.sees(`Nobody subscribes to group "g" of topic "a007"`)
		b.do(chromedp.Navigate(s.address + "/problems?kind=unread+group&t=a007"))
		b.click("Ignore…")
		b.fill("why", "it starts in May")
		b.click("Ignore")
		b.sees("1 problem ignored", `by "ann"`, "it starts in May")
		b.click("Topics")
		b.sees("1 problem ignored", "There are 199 groups without a subscriber")
		b.click("1 problem ignored")
		b.click("Show it again")
		b.sees("There are 200 groups without a subscriber")
		require.Equal(t, []string{"ann unignore", "ann ignore"}, s.acts())
		b.click("Memory")
		b.sees("estimated by 50 samples of each key", "orders")
		for i := range 200 {
			_, err := s.admin.DeleteTopic(ctx, fmt.Sprintf("a%03d", i), admin.DeleteOptions{})
			require.NoError(t, err)
		}
	})
}
