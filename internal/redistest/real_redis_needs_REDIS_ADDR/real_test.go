// Package realredis exists for its path. Of a passing package `go test ./...` prints
// one line and hides all output, so the packages that skip their tests on a
// real Redis cannot say so. This one's line can:
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

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/stretchr/testify/require"
)

// TestMain prints the line that makes the go command add "[no tests to run]".
// The test is skipped and not left out by -run: a cached result would stand
// for a run with REDIS_ADDR too if nothing inside the run had read it.
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
