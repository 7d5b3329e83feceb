package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// auditLength is about how many entries the audit log keeps.
const auditLength = 10_000

// Audited is an entry of the audit log.
type Audited struct {
	ID     string // orders entries by time
	At     time.Time
	Fields map[string]string
}

// Audit adds an entry to the audit log of a prefix.
func Audit(ctx context.Context, client *servers.Client, prefix string, fields map[string]string) error {
	err := client.Call(func(c redis.UniversalClient) error {
		return c.XAdd(ctx, &redis.XAddArgs{Stream: AuditLog(prefix), MaxLen: auditLength, Approx: true, Values: fields}).Err()
	})
	return auditError(prefix, "write to the audit log", "xadd", err)
}

// AuditBefore returns entries of the audit log before an ID, or the newest for "", newest first.
func AuditBefore(ctx context.Context, client *servers.Client, prefix, before string, count int) (found []Audited, err error) {
	end := "+"
	if before != "" {
		end = "(" + before
	}
	entries, err := servers.AskKey(ctx, client, AuditLog(prefix), func(ctx context.Context, c redis.UniversalClient) ([]redis.XMessage, error) {
		return c.XRevRangeN(ctx, AuditLog(prefix), end, "-", int64(count)).Result()
	})
	if err != nil {
		return nil, auditError(prefix, "read the audit log", "xrevrange", err)
	}
	for _, e := range entries {
		a := Audited{ID: e.ID, Fields: map[string]string{}}
		var ms int64
		if _, err := fmt.Sscanf(e.ID, "%d-", &ms); err == nil {
			a.At = time.UnixMilli(ms)
		}
		for field, value := range e.Values {
			a.Fields[field] = Text(value)
		}
		found = append(found, a)
	}
	return found, nil
}

func auditError(prefix, what, command string, err error) error {
	if wrongType(err) {
		err = fmt.Errorf("the key %q has to be a stream: %w", AuditLog(prefix), err)
	}
	return refusal.To(what, command, err, refusal.Keys(prefix))
}
