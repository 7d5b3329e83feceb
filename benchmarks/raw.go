package main

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

const rawName = "go-redis alone"

var raw = system{name: rawName, open: openRaw}

// openRaw is what go-redis takes for commands of the same shape, without scripts, without joining
// the calls of several callers, and without any of the promises: a hash of bodies, a list of what
// is due, a sorted set of what is not, a sorted set and a hash of leases. The commands of one call
// are one pipeline.
func openRaw(e *env, o options) (*queue, error) {
	topic := "raw:{" + e.topic() + "}"
	bodies, ready, pending := topic+":bodies", topic+":ready", topic+":pending"
	client := e.newClient()
	consumer := &rawConsumer{client: client, topic: topic, batch: o.inFlight, stop: make(chan struct{})}

	stored := func() (int64, error) { return client.HLen(ctx, bodies).Result() }
	return &queue{
		stored: stored,
		publish: func(messages []*message.Message, due []time.Time) error {
			set, ids, scores := make([]any, 0, 2*len(messages)), make([]any, 0, len(messages)), make([]redis.Z, 0, len(due))
			for i, msg := range messages {
				set = append(set, msg.UUID, []byte(msg.Payload))
				if due != nil {
					consumer.delayed.Store(true)
					scores = append(scores, redis.Z{Score: float64(due[i].UnixMilli()), Member: msg.UUID})
				} else {
					ids = append(ids, msg.UUID)
				}
			}
			pipe := client.Pipeline()
			pipe.HSet(ctx, bodies, set...)
			if due != nil {
				pipe.ZAdd(ctx, pending, scores...)
			} else {
				pipe.RPush(ctx, ready, ids...)
			}
			_, err := pipe.Exec(ctx)
			return err
		},
		consume:   consumer.start,
		unsettled: stored,
		close: func() error {
			close(consumer.stop)
			consumer.running.Wait()
			return client.Close()
		},
	}, nil
}

// rawConsumer claims and acks batches in two round trips each: one takes IDs, together with the
// acks of the batch before; the other leases them and reads their bodies. What is delayed it takes
// from the sorted set.
type rawConsumer struct {
	client  *redis.Client
	topic   string
	batch   int
	delayed atomic.Bool
	stop    chan struct{}
	running sync.WaitGroup
}

func (c *rawConsumer) start(handle func(payload []byte)) error {
	c.running.Go(func() {
		var acked []string
		for {
			select {
			case <-c.stop:
				return
			default:
			}
			ids, err := c.next(acked)
			if err != nil && err != redis.Nil {
				return
			}
			if acked = ids; len(ids) == 0 {
				time.Sleep(time.Millisecond)
				continue
			}
			for _, body := range c.lease(ids) {
				handle(body)
			}
		}
	})
	return nil
}

func (c *rawConsumer) next(acked []string) ([]string, error) {
	pipe := c.client.Pipeline()
	if len(acked) > 0 {
		pipe.ZRem(ctx, c.topic+":unack", members(acked)...)
		pipe.HDel(ctx, c.topic+":leases", acked...)
		pipe.HDel(ctx, c.topic+":bodies", acked...)
	}
	var ids *redis.StringSliceCmd
	if c.delayed.Load() {
		now := strconv.FormatInt(time.Now().UnixMilli(), 10)
		ids = pipe.ZRangeByScore(ctx, c.topic+":pending", &redis.ZRangeBy{Min: "-inf", Max: now, Count: int64(c.batch)})
	} else {
		ids = pipe.LPopCount(ctx, c.topic+":ready", c.batch)
	}
	_, _ = pipe.Exec(ctx)
	return ids.Result()
}

func members(ids []string) []any {
	all := make([]any, len(ids))
	for i, id := range ids {
		all[i] = id
	}
	return all
}

func (c *rawConsumer) lease(ids []string) (bodies [][]byte) {
	deadline := float64(time.Now().Add(30 * time.Second).UnixMilli())
	scores, tokens := make([]redis.Z, len(ids)), make([]any, 0, 2*len(ids))
	for i, id := range ids {
		scores[i] = redis.Z{Score: deadline, Member: id}
		tokens = append(tokens, id, "subscription:1:0")
	}
	pipe := c.client.Pipeline()
	if c.delayed.Load() {
		pipe.ZRem(ctx, c.topic+":pending", members(ids)...)
	}
	found := pipe.HMGet(ctx, c.topic+":bodies", ids...)
	pipe.ZAdd(ctx, c.topic+":unack", scores...)
	pipe.HSet(ctx, c.topic+":leases", tokens...)
	_, _ = pipe.Exec(ctx)
	for _, body := range found.Val() {
		bodies = append(bodies, []byte(body.(string)))
	}
	return bodies
}
