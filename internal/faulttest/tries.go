package faulttest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// tries is a recorder of go-redis's metrics, which is the only one that it tells how often it sent a call. What a
// script answers to a call that was sent again does not tell what it did the first time.
type tries struct{}

type triesKey struct{}

// count is of how often calls are sent: those, and not what makes a connection ready for them. Without calls it is of all
// that passes a wire, and of what was sent most often.
type count struct {
	cmds  []redis.Cmder
	tries atomic.Int64
}

// countTries has c count when calls are sent with the context.
func countTries(ctx context.Context, c *count) context.Context {
	return context.WithValue(ctx, triesKey{}, c)
}

func (tries) RecordOperationDuration(ctx context.Context, _ time.Duration, cmd redis.Cmder, attempts int, _ error, _ redis.ConnInfo, _ int) {
	if c, ok := ctx.Value(triesKey{}).(*count); ok && len(c.cmds) == 1 && c.cmds[0] == cmd {
		c.tries.Add(int64(attempts))
	}
}

// A pipeline of as many calls may be another, and makes the count higher, which proves less.
func (tries) RecordPipelineOperationDuration(ctx context.Context, _ time.Duration, _ string, n, attempts int, _ error, _ redis.ConnInfo, _ int) {
	if c, ok := ctx.Value(triesKey{}).(*count); ok && len(c.cmds) == n {
		c.tries.Add(int64(attempts))
	}
}

// The rest is nothing here.

func (tries) RecordConnectionCreateTime(context.Context, time.Duration, redis.ConnInfo) {}

func (tries) RecordConnectionRelaxedTimeout(context.Context, int, redis.ConnInfo, string, string) {}

func (tries) RecordConnectionHandoff(context.Context, redis.ConnInfo, string) {}

func (tries) RecordError(context.Context, string, redis.ConnInfo, string, bool, int) {}

func (tries) RecordMaintenanceNotification(context.Context, redis.ConnInfo, string) {}

func (tries) RecordConnectionWaitTime(context.Context, time.Duration, redis.ConnInfo) {}

func (tries) RecordConnectionClosed(context.Context, redis.ConnInfo, string, error) {}

func (tries) RecordPubSubMessage(context.Context, redis.ConnInfo, string, string, bool) {}

func (tries) RecordStreamLag(context.Context, time.Duration, redis.ConnInfo, string, string, string) {
}
