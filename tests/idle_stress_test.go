//go:build stress

package tests

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// This is timed by nature: with nothing but far-future messages, it counts the commands of a while.
// It runs alone, so that what else goes on does not stretch that.
func TestStressIdleCommands(t *testing.T) {
	const topics, subscriptions, window = 4, 5, 12 * time.Second
	plain := func(*redisdelay.SubscriberConfig) {}
	for name, c := range map[string]struct {
		processes int
		change    func(*redisdelay.SubscriberConfig)
	}{
		"each a process of its own":      {topics * subscriptions, plain},
		"one process":                    {1, plain},
		"one is active, others stand by": {topics * subscriptions, func(c *redisdelay.SubscriberConfig) { c.SingleActive = true }},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client(t)
			publisher := newPublisher(t, on(t, client))
			var subscribers []*redisdelay.Subscriber
			for range c.processes {
				subscribers = append(subscribers, newSubscriber(t, on(t, server.Client(t)), c.change))
			}
			for i := range topics * subscriptions {
				name := fmt.Sprint(topic, i%topics)
				_, err := subscribers[i%c.processes].Subscribe(context.Background(), name)
				require.NoError(t, err)
				if i < topics {
					require.NoError(t, publisher.Publish(name, newMessage("far", time.Hour)))
				}
			}
			time.Sleep(2 * time.Second) // what follows a beginning is over

			before := commandsOfClients(t, client)
			time.Sleep(window)
			commands := commandsOfClients(t, client) - before

			rate := float64(commands) / window.Seconds() / (topics * subscriptions)
			t.Logf("%.3f commands a second for each idle subscription", rate)
			require.LessOrEqual(t, rate, 0.5)
		})
	}
}

var statistic = regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`)

// commandsOfClients is how many commands the server got from clients. Its statistics count what
// scripts call too, so these are the commands that no script calls; of what an idle program sends,
// that is all.
func commandsOfClients(t *testing.T, client redis.UniversalClient) (total int) {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, found := range statistic.FindAllStringSubmatch(info, -1) {
		switch found[1] {
		case "evalsha", "eval", "ping", "hello", "subscribe", "unsubscribe", "sadd", "sscan":
			calls, err := strconv.Atoi(found[2])
			require.NoError(t, err)
			total += calls
		}
	}
	return total
}
