package dashboard

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// A page that is opened has all topics read, however long the sweep would rest. Who asks while no
// round may begin yet gets one later.
func TestARoundThatIsAskedForHasNoRests(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	server := redistest.On(t, client, "test")
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: server.Prefix})
	require.NoError(t, err)
	topics := func(from, to int) {
		for i := from; i < to; i++ {
			testkit.Groups(t, server, fmt.Sprintf("topic-%03d", i), "g")
		}
	}
	s := newSweep(a)
	require.NotNil(t, s.ask(), "a round begins now")
	s.spare(time.Hour)
	require.Nil(t, s.ask(), "none begins for an hour")

	s = newSweep(a)
	s.least = time.Hour
	ctx, stop := context.WithCancel(context.Background())
	ended := testkit.Begin(func() error { s.run(ctx); return nil })
	t.Cleanup(func() { stop(); <-ended })
	reads := func(count int) {
		t.Helper()
		require.Eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.topics) == count && !s.ended.IsZero()
		}, testkit.Soon, testkit.Soon/1000)
	}
	reads(0)
	for count := 2 * sweepPage; count <= 6*sweepPage; count += 2 * sweepPage {
		topics(count-2*sweepPage, count)
		s.ask()
		reads(count)
	}
}
