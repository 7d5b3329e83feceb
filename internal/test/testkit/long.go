package testkit

import (
	"fmt"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Groups makes groups of a topic that nobody reads, without the library. So thousands are there at
// once.
func Groups(t TB, s redistest.Server, topic string, groups ...string) {
	t.Helper()
	k := queue.NewKeys(s.Prefix, topic)
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, queue.Registry(s.Prefix), topic)
		p.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x")
		for _, group := range groups {
			p.HSet(ctx, k.Groups(), group, "25 -1 -1")
		}
		return nil
	})
	require.NoError(t, err)
}

// Workers makes n subscriptions of a group that say who they are: processes 1 to n.
func Workers(t TB, s redistest.Server, topic, group string, n int) {
	t.Helper()
	workers := queue.NewKeys(s.Prefix, topic).Workers(group)
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			p.HSet(ctx, workers, fmt.Sprint("subscription ", i), fmt.Sprintf("1 1 %d - - %d host program - address", math.MaxInt32*int64(1000), i+1))
		}
		return nil
	})
	require.NoError(t, err)
}

// DeadLetters makes a dead letter of a group for each reason.
func DeadLetters(t TB, s redistest.Server, topic, group string, reasons ...string) {
	t.Helper()
	k := queue.NewKeys(s.Prefix, topic)
	Groups(t, s, topic, group)
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, reason := range reasons {
			id := fmt.Sprintf("01M7Y3SQGNBVX5P66M%08d", i)
			p.HSet(ctx, k.Messages(), id, "no body")
			p.HSet(ctx, k.Deliveries(group), id, "25 - - "+reason)
			p.ZAdd(ctx, k.Dead(group), redis.Z{Score: float64(i + 1), Member: id})
		}
		return nil
	})
	require.NoError(t, err)
}

// Letters returns a number in letters, because reasons that differ in numbers are one.
func Letters(n int) string {
	text := []byte(strconv.Itoa(n))
	for i := range text {
		text[i] += 'a' - '0'
	}
	return string(text)
}
