package rights

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// answering is a client whose server gives one answer to everything.
type answering []any

func (a answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if cmd, ok := cmd.(*redis.Cmd); ok {
			cmd.SetVal([]any(a))
		}
		return nil
	}
}

func (a answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			_ = a.ProcessHook(nil)(ctx, cmd)
		}
		return nil
	}
}

// wellFormed tells whether all parts are refusals of permit.lua.
func wellFormed(parts []any) bool {
	return !slices.ContainsFunc(parts, func(part any) bool {
		_, verdict, _ := strings.Cut(part.(string), " ")
		return verdict != "forbidden" && verdict != "absent"
	})
}

func FuzzPermits(f *testing.F) {
	for _, text := range []string{"", "noeviction", "allkeys-lru", "\nZADD forbidden", "noeviction\nHSET absent\nZADD forbidden", "\nZADD", "nil", "#1", "\nnil"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, whole := redistest.Parts(text)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer func() { _ = client.Close() }()
		client.AddHook(answering(parts))
		policy, there, err := permitted(t.Context(), queue.NewTopic(servers.MustClient(client), "p", "t"), Work{})
		switch {
		case err != nil && (there || policy != ""):
			t.Errorf("%q is read as %q, and %v", parts, policy, err)
		case whole && len(parts) == 0 && (there || err != nil), whole && len(parts) == 1 && (!there || err != nil):
			t.Errorf("%q is read as %v, and %v", parts, there, err)
		case whole && len(parts) > 1 && err == nil:
			t.Errorf("%q is read as %v", parts, there)
		case whole && len(parts) > 1 && wellFormed(parts[1:]) != errors.Is(err, refusal.ErrForbidden):
			t.Errorf("%q is read as %v, and %v", parts, there, err)
		case !whole && err == nil:
			t.Errorf("%q is read as %q", parts, policy)
		case err == nil && policy == "noeviction":
			t.Errorf("%q evicts by %q", parts, policy)
		}
	})
}
