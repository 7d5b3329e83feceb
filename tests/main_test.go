package tests

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// children are what this test binary does when a test starts it again as a process of its own: by
// role, with the exit status. Test files add theirs.
var children = map[string]func() int{}

func TestMain(m *testing.M) {
	if role := os.Getenv("REDISDELAY_CHILD"); role != "" {
		child, ok := children[role]
		if !ok {
			panic("no child process has the role " + role)
		}
		os.Exit(child())
	}
	// Watermill's TestReconnect and Deduplicator leave goroutines of their own behind.
	redistest.Main(m,
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/pubsub/tests.TestReconnect.func2"),
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}
