package exampletest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A program that cannot publish or subscribe must print the reason and end with status 1, long
// before its limit.
func TestEveryExampleEndsOnAServerThatRefuses(t *testing.T) {
	programs, err := filepath.Glob("../../*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, main := range programs {
		dir := filepath.Dir(main)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
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
		})
	}
}
