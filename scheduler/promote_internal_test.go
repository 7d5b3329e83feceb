package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// duringSweeps calls a function before each script after the pipeline of promotions.
type duringSweeps struct {
	promoted bool
	call     func()
}

func (d *duringSweeps) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *duringSweeps) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if d.promoted && cmd.Name() == "evalsha" {
			d.call()
		}
		return next(ctx, cmd)
	}
}

func (d *duringSweeps) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		d.promoted = d.promoted || cmds[0].Name() == "evalsha" && err == nil
		return err
	}
}

// Taking back many expired leases may take long, as may purging.
func TestSweepRunsAfterOtherTopicsHaveTheirTasks(t *testing.T) {
	mini, client := redistest.Embedded(t)
	mini.SetTime(time.Now())
	s, err := New(Config{Client: client, Topics: []string{}}, nil)
	require.NoError(t, err)
	t.Cleanup(s.pools.close)
	var closeMailbox func()
	s.mailbox, closeMailbox = wake.Open(servers.MustClient(client), "p")
	t.Cleanup(closeMailbox)
	var topics []*served
	for _, name := range []string{"lost", "quiet"} {
		topic := &served{topic: queue.NewTopic(servers.MustClient(client), "p", name), receiver: s.mailbox.Receive(nil, func(string, func(time.Time)) {}), busy: true}
		require.NoError(t, topic.topic.Register(t.Context(), "g", queue.GroupOptions{MaxDeliveries: -1, Retention: -1}))
		topics = append(topics, topic)
	}
	lost := topics[0].topic
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(t, err)
	require.NoError(t, lost.PublishWithin(t.Context(), "p", 1, []queue.Message{{ID: id, Due: queue.In(0), Body: []byte("x")}}, queue.Limit{}))
	claim := queue.Claim{Subscription: "s", Number: 1, Limit: 1, Lease: time.Millisecond, Bytes: 1}
	require.NoError(t, queue.Do(t.Context(), servers.MustClient(client), lost.Group("g").ClaimCall(claim)))
	mini.SetTime(time.Now().Add(time.Second))

	sweeps := 0
	options := client.(*redis.Client).Options()
	watched := redis.NewClient(&redis.Options{Addr: options.Addr, ReadTimeout: options.ReadTimeout})
	t.Cleanup(func() { _ = watched.Close() })
	s.client = servers.MustClient(watched)
	for _, topic := range topics {
		topic.topic = queue.NewTopic(servers.MustClient(watched), "p", topic.topic.Name)
	}
	watched.AddHook(&duringSweeps{call: func() {
		sweeps++
		require.False(t, topics[1].busy)
		require.False(t, topics[1].armed.IsZero())
		require.True(t, topics[0].busy)
	}})
	s.promote(t.Context(), s.pools.first, topics)
	require.Positive(t, sweeps)
	require.False(t, topics[0].busy)
}

// Otherwise its receiver would stay in the mailbox, and no other scheduler would take over.
func TestRemovedTopicIsLeftAfterAFailedPromotion(t *testing.T) {
	s := newScheduler(t)
	left := 0
	topic := &served{topic: queue.NewTopic(s.client, "p", "t"), removed: true, busy: true, stop: func() { left++ }}
	ended, end := context.WithCancel(t.Context())
	end()
	s.retry(ended, topic, errors.New("it fails"), time.Second)
	require.Equal(t, 1, left)
}
