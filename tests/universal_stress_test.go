//go:build stress

package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The whole suite ten times at once (STRESS_TEST_COUNT), in each mode, on the real server.
func TestStressUniversal(t *testing.T) {
	for name, mode := range map[string]struct {
		features    tests.Features
		maxInFlight int
		delay       time.Duration
		partitions  int
	}{
		"ordered":          {ordered, orderedInFlight, 0, 0},
		"ordered delayed":  {ordered, orderedInFlight, time.Second, 0},
		"parallel":         {parallel, parallelInFlight, 0, 0},
		"parallel delayed": {parallel, parallelInFlight, time.Second, 0},
		"partitioned":      {parallel, parallelInFlight, 0, 5},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				on := onServer(t, s, mode.maxInFlight, mode.delay)
				on.partitions = mode.partitions
				tests.TestPubSubStressTest(t, mode.features, on.pubSub, on.pubSubInGroup)
			})
		})
	}
}
