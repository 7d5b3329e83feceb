package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// waitStep is how long one WAIT lasts at most: shorter than clients wait for an answer.
	waitStep = time.Second / 2
	// waitPause is between two looks of which the first was answered too early.
	waitPause = 20 * time.Millisecond
)

// errGone means that the server that has the topic never had the call.
var errGone = errors.New("it is lost: the server that has the topic now does not know of it")

// AwaitReplicas waits until as many replicas have what the publisher's call of that number wrote, or returns
// ErrNotReplicated after the timeout. It is for the publisher's last call, after it has succeeded.
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
		case ctx.Err() != nil || !time.Now().Before(end) || err != nil && !Unreachable(err):
			if err != nil {
				return fmt.Errorf("%w: asked for %d replicas: %w", ErrNotReplicated, replicas, err)
			}
			return fmt.Errorf("%w: %d of %d replicas have it after %v", ErrNotReplicated, have, replicas, timeout)
		}
		// Another node may have the topic now.
		t.client.findNodes(ctx, err)
		if time.Since(began) < waitPause { // as errors come, and answers of servers that do not wait
			select {
			case <-time.After(waitPause):
			case <-ctx.Done():
			}
		}
	}
}

// countReplicas returns how many replicas have the call, at the latest when left is over, or sooner if they are
// enough.
//
// WAIT waits for what was written before over its own connection, and tells nothing after a read, or on a
// connection that is new. So it goes in one pipeline behind a write, which is in the stream of replication behind
// the call. That the number is there shows that the call is in the history of the server that is asked, and was
// not lost with another. A pipeline of one node's client is not redirected by half.
func (t *Topic) countReplicas(ctx context.Context, publisher string, number uint64, replicas int, left time.Duration) (int64, error) {
	node, err := t.node(ctx)
	if err != nil {
		return 0, err
	}
	step := min(left, waitStep)
	if timeout := node.Options().ReadTimeout; timeout > 0 {
		step = min(step, timeout/2)
	}
	key := t.keys.Publisher(publisher)
	pipe := node.Pipeline()
	last := pipe.Get(ctx, key)
	pipe.PExpire(ctx, key, memory)
	have := pipe.Do(ctx, "wait", replicas, max(step.Milliseconds(), 1)) // 0 is for ever
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if last.Val() != strconv.FormatUint(number, 10) {
		return 0, errGone
	}
	return have.Int64()
}
