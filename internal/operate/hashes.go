package operate

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Now returns the time of the server.
func (t *Topic) Now(ctx context.Context) (time.Time, error) {
	now, err := servers.AskMaster(ctx, t.Client(), t.Key(), func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	return now, refusal.Of(err)
}

// Hashes reads hashes in steps of about 500 fields. The first step of all is one pipeline.
func (t *Topic) Hashes(ctx context.Context, keys []string) ([]map[string]string, error) {
	fields := make([]map[string]string, len(keys))
	cursors := make([]uint64, len(keys))
	for i := range fields {
		fields[i] = map[string]string{}
	}
	for first := true; first || slices.ContainsFunc(cursors, func(c uint64) bool { return c != 0 }); first = false {
		scans := make([]*redis.ScanCmd, len(keys))
		err := t.Client().Call(func(c redis.UniversalClient) error {
			p := c.Pipeline()
			for i, key := range keys {
				if first || cursors[i] != 0 {
					scans[i] = p.HScan(ctx, key, cursors[i], "", 500)
				}
			}
			_, err := p.Exec(ctx)
			return err
		})
		if err != nil {
			return nil, refusal.Of(err)
		}
		for i, scan := range scans {
			if scan == nil {
				continue
			}
			var pairs []string
			pairs, cursors[i] = scan.Val()
			for pair := range slices.Chunk(pairs, 2) {
				fields[i][pair[0]] = pair[len(pair)-1]
			}
		}
	}
	return fields, nil
}

// Fields returns the values of fields of a hash, "" for one that is not there.
func (t *Topic) Fields(ctx context.Context, key string, fields []string) ([]string, error) {
	found, err := servers.AskKey(ctx, t.Client(), key, func(ctx context.Context, c redis.UniversalClient) ([]any, error) {
		return c.HMGet(ctx, key, fields...).Result()
	})
	if err != nil {
		return nil, refusal.Of(err)
	}
	values := make([]string, len(fields))
	for i := range min(len(found), len(fields)) {
		values[i], _ = found[i].(string)
	}
	return values, nil
}
