package redistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Server is the Redis of a subtest of Both, embedded or real.
type Server struct {
	Client redis.UniversalClient
	Prefix string               // unique start of all keys of this subtest, without braces or SCAN wildcards
	Mini   *miniredis.Miniredis // nil on the real server

	hooks *[]func()
}

// OnCleanup registers a check of the keys that the subtest leaves in Redis. It
// runs after all cleanups of the subtest and before its keys are deleted. The
// check that was registered last runs first.
func (s Server) OnCleanup(check func()) {
	*s.hooks = append(*s.hooks, check)
}

// Both runs a test on an embedded and on the real Redis, as the parallel subtests
// "embedded" and "real". They run after the calling test function has returned.
func Both(t *testing.T, test func(t *testing.T, s Server)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		mini, client := Embedded(t)
		test(t, newServer(t, client, mini))
	})
	Real(t, test)
}

// Real runs a test on the real Redis, as the parallel subtest "real".
func Real(t *testing.T, test func(t *testing.T, s Server)) {
	t.Helper()
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, newServer(t, Client(t), nil))
	})
}

// ForBenchmark returns the real Redis for a benchmark.
func ForBenchmark(b *testing.B) Server {
	b.Helper()
	return newServer(b, Client(b), nil)
}

// On is a server that belongs to the test alone, such as one of Start. Its keys stay.
func On(t testing.TB, client redis.UniversalClient, prefix string) Server {
	s := Server{Client: client, Prefix: prefix, hooks: new([]func())}
	t.Cleanup(func() {
		for i := len(*s.hooks) - 1; i >= 0; i-- {
			(*s.hooks)[i]()
		}
	})
	return s
}

func newServer(t testing.TB, client redis.UniversalClient, mini *miniredis.Miniredis) Server {
	prefix := uniquePrefix(t)
	if mini == nil {
		sweeper := newClient(t, Addr(t), patience) // as the test may close its client
		t.Cleanup(func() { deleteKeys(t, sweeper, prefix) })
	}
	s := On(t, client, prefix)
	s.Mini = mini
	return s
}

var notInPrefix = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

func uniquePrefix(t testing.TB) string {
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails
	name := notInPrefix.ReplaceAllString(t.Name(), "-")
	return "test-" + hex.EncodeToString(id) + ":" + name[:min(len(name), 80)]
}

// deleteKeys deletes every key that begins with prefix.
func deleteKeys(t testing.TB, client redis.UniversalClient, prefix string) {
	ctx := context.Background()
	var cursor uint64
	for {
		keys, next, err := client.Scan(ctx, cursor, prefix+"*", 1000).Result()
		if err == nil && len(keys) > 0 {
			err = client.Unlink(ctx, keys...).Err()
		}
		if err != nil {
			t.Errorf("redistest: deleting %s*: %v", prefix, err)
			return
		}
		if cursor = next; cursor == 0 {
			return
		}
	}
}
