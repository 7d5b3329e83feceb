package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

const (
	// waitStep is how long one WAIT lasts at most: shorter than clients wait for an answer.
	waitStep = time.Second / 2
	// waitPause is the least time from one WAIT to the next.
	waitPause = 20 * time.Millisecond
)

// errGone means that the server that has the topic never had the call.
var errGone = errors.New("the call is lost: the server that has the topic now does not have it")

// AwaitReplicas waits until so many replicas have the writes of the publisher's call with that
// number. It returns ErrNotReplicated after the timeout. It is for the last call, after its
// success.
func (t *Topic) AwaitReplicas(ctx context.Context, publisher string, number uint64, replicas int, timeout time.Duration) error {
	end := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(ctx, end.Add(waitStep)) // for a server that does not answer
	defer cancel()
	for {
		began := time.Now()
		have, err := t.countReplicas(ctx, publisher, number, replicas, end.Sub(began))
		switch {
		case err == nil && have >= int64(replicas):
			return nil
		case errors.Is(err, errGone):
			return fmt.Errorf("%w: %w", ErrNotReplicated, err)
		case ctx.Err() != nil || !time.Now().Before(end) || err != nil && !servers.Unreachable(err):
			if err != nil {
				return fmt.Errorf("%w: asked for %d replicas: %w", ErrNotReplicated, replicas, err)
			}
			return fmt.Errorf("%w: %d of %d replicas have it after %v", ErrNotReplicated, have, replicas, timeout)
		}
		t.client.FindNodes(ctx, err)       // another node may have the topic now
		if time.Since(began) < waitPause { // errors, and servers that do not wait, answer sooner
			select {
			case <-time.After(waitPause):
			case <-ctx.Done():
			}
		}
	}
}

// countReplicas returns how many replicas have the call. It returns when they are enough, or when
// left is over.
//
// WAIT counts only the replicas that have the last write over its own connection. So it follows a
// write in one pipeline, which replicas get after the call. The GET shows that the server asked has
// the call, so that no failover lost it. A node's client does not redirect a part of a pipeline.
func (t *Topic) countReplicas(ctx context.Context, publisher string, number uint64, replicas int, left time.Duration) (int64, error) {
	key := t.keys.Publisher(publisher)
	return servers.AskMaster(ctx, t.client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		step := min(left, waitStep)
		if timeout := servers.ReadTimeout(c); timeout > 0 {
			step = min(step, timeout/2)
		}
		pipe := c.Pipeline()
		last := pipe.Get(ctx, key)
		pipe.PExpire(ctx, key, memory)
		have := pipe.Do(ctx, "wait", replicas, max(step.Milliseconds(), 1)) // 0 would wait for ever
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
		if last.Val() != strconv.FormatUint(number, 10) {
			return 0, errGone
		}
		return have.Int64()
	})
}
