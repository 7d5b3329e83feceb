// Package realredis exists for its path. For a passing package, `go test ./...`
// prints one line and hides all output. So the packages that skip their tests
// on a real Redis cannot report it. The line of this package does:
//
//	ok  .../real_redis_needs_REDIS_ADDR  0.004s [no tests to run]
package realredis

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/stretchr/testify/require"
)

// TestMain prints the line that makes the go command add "[no tests to run]".
// The test is skipped here and not left out by -run, because the run must read
// REDIS_ADDR. Otherwise a cached result would also be used for runs with it.
func TestMain(m *testing.M) {
	if os.Getenv("REDIS_ADDR") == "" && os.Getenv("REDISTEST_REQUIRED") != "1" {
		fmt.Fprintln(os.Stderr, "testing: warning: no tests to run")
	}
	redistest.Main(m)
}

func TestServerIsOneThatWeSupport(t *testing.T) {
	info := redistest.Client(t).Info(context.Background(), "server").Val()
	oldest := 6.2
	version := regexp.MustCompile(`(?m)^valkey_version:(\d+\.\d+)`).FindStringSubmatch(info)
	if version != nil {
		oldest = 7.2
	} else {
		version = regexp.MustCompile(`(?m)^redis_version:(\d+\.\d+)`).FindStringSubmatch(info)
	}
	require.NotNil(t, version, info)
	got, err := strconv.ParseFloat(version[1], 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, got, oldest)
}
