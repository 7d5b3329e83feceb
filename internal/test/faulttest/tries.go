package faulttest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// tries is a recorder for go-redis's metrics, the only way to learn how often it sent a call. The
// answer to a repeated call does not show what the first one did.
type tries struct{}

type triesKey struct{}

// count counts how often calls were sent, without the commands that prepare a connection. Without
// calls it counts everything on a wire, and keeps the highest number.
type count struct {
	cmds  []redis.Cmder
	tries atomic.Int64
}

// countTries returns a context whose calls c counts.
func countTries(ctx context.Context, c *count) context.Context {
	return context.WithValue(ctx, triesKey{}, c)
}

func (tries) RecordOperationDuration(ctx context.Context, _ time.Duration, cmd redis.Cmder, attempts int, _ error, _ redis.ConnInfo, _ int) {
	if c, ok := ctx.Value(triesKey{}).(*count); ok && len(c.cmds) == 1 && c.cmds[0] == cmd {
		c.tries.Add(int64(attempts))
	}
}

// Another pipeline of the same length only makes the count higher, which proves less.
func (tries) RecordPipelineOperationDuration(ctx context.Context, _ time.Duration, _ string, n, attempts int, _ error, _ redis.ConnInfo, _ int) {
	if c, ok := ctx.Value(triesKey{}).(*count); ok && len(c.cmds) == n {
		c.tries.Add(int64(attempts))
	}
}

// The other methods do nothing.

func (tries) RecordConnectionCreateTime(context.Context, time.Duration, redis.ConnInfo)           {}
func (tries) RecordConnectionRelaxedTimeout(context.Context, int, redis.ConnInfo, string, string) {}
func (tries) RecordConnectionHandoff(context.Context, redis.ConnInfo, string)                     {}
func (tries) RecordError(context.Context, string, redis.ConnInfo, string, bool, int)              {}
func (tries) RecordMaintenanceNotification(context.Context, redis.ConnInfo, string)               {}
func (tries) RecordConnectionWaitTime(context.Context, time.Duration, redis.ConnInfo)             {}
func (tries) RecordConnectionClosed(context.Context, redis.ConnInfo, string, error)               {}
func (tries) RecordPubSubMessage(context.Context, redis.ConnInfo, string, string, bool)           {}
func (tries) RecordStreamLag(context.Context, time.Duration, redis.ConnInfo, string, string, string) {
}
