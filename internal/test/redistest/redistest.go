// Package redistest provides three kinds of Redis servers for tests: an
// embedded one (miniredis), one real server that the whole test run shares, and
// private real servers. A test may kill, pause and restart a private server.
//
// Environment, set by scripts/with-redis.sh:
//
//	REDIS_ADDR         host:port of the shared real server
//	REDIS_SERVER_BIN   redis-server binary for private servers; default: from PATH
//	REDISTEST_REQUIRED 1: a test whose server is missing fails instead of being skipped
//
// redistest.go runs a test on the embedded and on the shared server, which server.go describes.
// instance.go starts, kills and pauses private servers. replicas.go and cluster.go start several
// that belong together. clock.go, disk.go and preload.go start servers whose clock, disk or locale
// the test sets.
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

// Main is for a package's TestMain. It prints which tests are skipped because a server is missing,
// runs the tests, fails a passing run that leaks goroutines, and exits.
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

// leftOut returns a text about the skipped tests, or "" if none is skipped.
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

// leaks returns an error if goroutines are left after three seconds. It waits because go-redis
// redials a dead server for up to a second after its client was closed.
func leaks(opts []goleak.Option) error {
	for deadline := time.Now().Add(3 * time.Second); ; {
		err := goleak.Find(opts...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func required() bool { return os.Getenv("REDISTEST_REQUIRED") == "1" }

// missing skips the test, or fails it with REDISTEST_REQUIRED=1.
func missing(t testing.TB, what string) {
	t.Helper()
	if required() {
		t.Fatal(what)
	}
	t.Skip(what + ": LEFT OUT")
}

// Addr returns the address of the real server that the test run shares. Other
// tests use it at the same time. So use only your own keys (see Both), and send
// no command that affects the whole server.
func Addr(t testing.TB) string {
	t.Helper()
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		missing(t, "REDIS_ADDR not set")
	}
	return addr
}

// Client returns a client of the shared real server, closed when the test ends.
func Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	addr := Addr(t)
	client := newClient(t, addr, patience)
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Fatalf("REDIS_ADDR=%s does not answer PING: %v", addr, err)
	}
	return client
}

// Embedded returns a new miniredis and a client of it. Both are closed when the test ends.
func Embedded(t testing.TB) (*miniredis.Miniredis, redis.UniversalClient) {
	t.Helper()
	mini := miniredis.RunT(t)
	return mini, newClient(t, mini.Addr(), patience)
}

// patience is how long clients wait for the answers of servers that many tests, or the processes of
// one, keep busy. Such a server runs one command at a time.
const patience = 30 * time.Second

// newClient returns a client with a read timeout; 0 means the default of go-redis.
func newClient(t testing.TB, addr string, timeout time.Duration) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: 2 * time.Second, ReadTimeout: timeout})
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it already
	return client
}

// serverBin returns the binary for private servers, or "" if there is none.
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
