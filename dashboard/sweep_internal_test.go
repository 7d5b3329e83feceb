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
	s.end(true, time.Hour)
	require.Nil(t, s.ask(), "none begins for a hundred hours")

	s = newSweep(a)
	s.least, s.apart = time.Hour, 0
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
	const step = sweepPage * 3 / 2
	reads(0)
	for count := step; count <= 2*step; count += step {
		topics(count-step, count)
		s.ask()
		reads(count)
	}
}

// A topic that is gone goes, also if it was read in a round that ended early.
func TestARoundDropsTopicsThatAreGone(t *testing.T) {
	t.Parallel()
	s := newSweep(nil)
	gone, there := admin.Stats{Topic: "gone"}, admin.Stats{Topic: "there"}
	s.took([]admin.Stats{gone}, true, nil)
	s.took([]admin.Stats{there}, true, nil)
	s.end(true, 0)
	require.Len(t, s.topics, 1)
	require.Contains(t, s.topics, "there")

	s.took([]admin.Stats{gone}, true, nil)
	s.took([]admin.Stats{there}, false, nil)
	s.end(true, 0)
	require.Len(t, s.topics, 2)
}
