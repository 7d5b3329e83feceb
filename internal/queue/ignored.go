package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// MaxIgnored is how many entries the hash of ignored problems has at most.
const MaxIgnored = 1000

// ErrManyIgnored means that there is no room for one more ignored problem.
var ErrManyIgnored = errors.New("too many problems are ignored")

// Ignored is the kind of problem that an operator accepts, of all topics, of one, or of one group.
type Ignored struct {
	Kind, Topic, Group string
	Severity           string // the worst that is accepted; "": any
	By, Why            string
	Since              time.Time
}

// field returns the field of the hash that has it.
func (i Ignored) field() string {
	field := EncodeName(i.Kind)
	if i.Topic != "" {
		field += " " + EncodeName(i.Topic)
	}
	if i.Group != "" {
		field += " " + EncodeName(i.Group)
	}
	return field
}

// readIgnored reads a field and its value. Missing parts are zero.
func readIgnored(field, value string) Ignored {
	name := append(strings.SplitN(field, " ", 3), "", "")
	part := append(strings.SplitN(value, " ", 4), "", "", "")
	i := Ignored{Kind: DecodeName(name[0]), Topic: DecodeName(name[1]), Group: DecodeName(name[2]), Since: Instant(part[0]), By: unword(part[2]), Why: part[3]}
	if part[1] != "-" {
		i.Severity = part[1]
	}
	return i
}

// IgnoredOf returns all problems that operators ignore.
func IgnoredOf(ctx context.Context, client *servers.Client, prefix string) (all []Ignored, err error) {
	key := IgnoredProblems(prefix)
	fields, err := servers.AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (map[string]string, error) {
		return c.HGetAll(ctx, key).Result()
	})
	for field, value := range fields {
		all = append(all, readIgnored(field, value))
	}
	return all, ignoredError(prefix, "read which problems are ignored", "hgetall", err)
}

// Ignore notes that a problem is ignored, since now by the server's clock. It returns
// ErrManyIgnored at MaxIgnored.
func Ignore(ctx context.Context, client *servers.Client, prefix string, i Ignored) (since time.Time, err error) {
	key := IgnoredProblems(prefix)
	since, err = servers.AskMaster(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	if err != nil {
		return since, refusal.To("read the server's clock", "time", err)
	}
	since = since.Truncate(time.Millisecond)
	n, err := servers.AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.HLen(ctx, key).Result()
	})
	switch {
	case err != nil:
		return since, ignoredError(prefix, "count the ignored problems", "hlen", err)
	case n >= MaxIgnored:
		return since, fmt.Errorf("%w: there are %d; end some", ErrManyIgnored, n)
	}
	severity := i.Severity
	if severity == "" {
		severity = "-"
	}
	value := fmt.Sprintf("%d %s %s %s", since.UnixMilli(), severity, word(i.By), i.Why)
	_, err = servers.AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.HSet(ctx, key, i.field(), value).Result()
	})
	return since, ignoredError(prefix, "ignore a problem", "hset", err)
}

// Unignore ends that problems are ignored. It returns how many of them were.
func Unignore(ctx context.Context, client *servers.Client, prefix string, some ...Ignored) (was int, err error) {
	if len(some) == 0 {
		return 0, nil
	}
	key := IgnoredProblems(prefix)
	fields := make([]string, len(some))
	for n, i := range some {
		fields[n] = i.field()
	}
	removed, err := servers.AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.HDel(ctx, key, fields...).Result()
	})
	return int(removed), ignoredError(prefix, "end that a problem is ignored", "hdel", err)
}

func ignoredError(prefix, what, command string, err error) error {
	if wrongType(err) {
		err = fmt.Errorf("the key %q has to be a hash: %w", IgnoredProblems(prefix), err)
	}
	return refusal.To(what, command, err, refusal.Keys(prefix))
}
