package exampletest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// EndsOnAServerThatRefuses builds the program in a directory. If it cannot publish or subscribe, it
// must print the reason and end with status 1, long before its limit.
func EndsOnAServerThatRefuses(t *testing.T, dir string) {
	t.Helper()
	program := build(t, dir)
	for what, refusal := range map[string]struct {
		set  []any
		says string
	}{
		"writes":   {[]any{"CONFIG", "SET", "maxmemory", "1"}, redisdelay.ErrServerFull.Error()},
		"channels": {[]any{"ACL", "SETUSER", "default", "resetchannels"}, redisdelay.ErrForbidden.Error()},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			require.NoError(t, server.Client(t).Do(context.Background(), refusal.set...).Err())
			began := time.Now()
			p := Start(t, program, server.Addr())
			out, status := p.End(t)
			require.Equal(t, 1, status, "%s%s", out, p.Stderr())
			require.Less(t, time.Since(began), 8*time.Second)
			require.Contains(t, p.Stderr(), refusal.says)
		})
	}
}
