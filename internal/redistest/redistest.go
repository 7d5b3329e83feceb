// Package redistest gives tests their Redis: an embedded one (miniredis), the
// real server shared by the whole test run, and private real servers that a
// test may kill, pause and restart.
//
// Environment, all of it set by scripts/with-redis.sh:
//
//	REDIS_ADDR         host:port of the shared real server
//	REDIS_SERVER_BIN   redis-server binary for private servers; default: from PATH
//	REDISTEST_REQUIRED 1: a test that misses one of them fails instead of being skipped
package redistest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// Main is for a package's TestMain: it says what the run leaves out for want
// of a server, runs the tests, fails a passing run that leaks goroutines, and
// exits.
func Main(m *testing.M, opts ...goleak.Option) {
	if left := leftOut(); left != "" {
		fmt.Fprintf(os.Stderr, "redistest: %s (run 'make test' for all of them)\n", left)
	}
	code := m.Run()
	if code == 0 {
		if err := leaks(opts); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: errors on successful test run: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftOut says which tests are skipped here, or nothing.
func leftOut() string {
	if required() {
		return ""
	}
	var left []string
	if os.Getenv("REDIS_ADDR") == "" {
		left = append(left, "REDIS_ADDR not set: tests on a real Redis server are LEFT OUT")
	}
	if serverBin() == "" {
		left = append(left, "no redis-server: tests that start their own are LEFT OUT")
	}
	return strings.Join(left, "; ")
}

// leaks is patient: go-redis redials a dead server for up to a second after
// its client was closed.
func leaks(opts []goleak.Option) error {
	for deadline := time.Now().Add(3 * time.Second); ; {
		err := goleak.Find(opts...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func required() bool { return os.Getenv("REDISTEST_REQUIRED") == "1" }

// missing skips the test, or fails it where nothing may be left out.
func missing(t testing.TB, what string) {
	t.Helper()
	if required() {
		t.Fatal(what)
	}
	t.Skip(what + ": LEFT OUT")
}

// Addr is the address of the real server shared by the test run. Other tests
// use it at the same time: keep to keys of your own (see Both) and send nothing
// that touches the whole server.
func Addr(t testing.TB) string {
	t.Helper()
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		missing(t, "REDIS_ADDR not set")
	}
	return addr
}

// Client is a client of the shared real server, closed when the test ends.
func Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	addr := Addr(t)
	client := newClient(t, addr, 0)
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Fatalf("REDIS_ADDR=%s does not answer PING: %v", addr, err)
	}
	return client
}

// Embedded is a miniredis of the test's own and a client of it; both are
// closed when the test ends.
func Embedded(t testing.TB) (*miniredis.Miniredis, redis.UniversalClient) {
	t.Helper()
	mini := miniredis.RunT(t)
	// It does one thing at a time in the test's own process, so on a busy machine it is slow, and not gone.
	return mini, newClient(t, mini.Addr(), 30*time.Second)
}

// newClient returns a client that waits so long for an answer; 0: as long as go-redis does by itself.
func newClient(t testing.TB, addr string, patience time.Duration) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: 2 * time.Second, ReadTimeout: patience})
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it already
	return client
}

// serverBin is the binary that private servers run, or nothing.
func serverBin() string {
	if bin := os.Getenv("REDIS_SERVER_BIN"); bin != "" {
		return bin
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin
		}
	}
	return ""
}
