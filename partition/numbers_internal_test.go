package partition

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// While the node with the number hangs, one call in a while waits for it, and the log says so.
func TestPublishersGoOnWhileTheNumberCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := watermill.NewCaptureLogger()
		hangs, asked := false, 0
		n := &numbers{refresh: refreshAfter, logger: logger, ask: func(ctx context.Context, _ string) (queue.Partitioning, error) {
			asked++
			if hangs {
				<-ctx.Done()
				return queue.Partitioning{}, ctx.Err()
			}
			return queue.Partitioning{Count: 12 + asked}, nil
		}}
		count := func() int {
			read, err := n.of("orders")
			require.NoError(t, err)
			return read.Count
		}
		require.Equal(t, 13, count())
		hangs = true
		for range 10 {
			time.Sleep(refreshAfter)
			before := asked
			began := time.Now()
			require.Equal(t, 13, count())
			require.Equal(t, askFor, time.Since(began))
			for range 100 {
				require.Equal(t, 13, count())
			}
			require.Equal(t, before+1, asked, "the others do not wait")
			require.Equal(t, askFor, time.Since(began))
		}
		failed := logger.Captured()[watermill.ErrorLogLevel]
		require.Len(t, failed, 10)
		require.ErrorIs(t, failed[0].Err, context.DeadlineExceeded)
		require.Equal(t, "orders", failed[0].Fields["topic"])
		hangs = false
		time.Sleep(refreshAfter)
		require.Equal(t, 24, count())
	})
}

// Two calls read it at once if the first takes long. The answer that comes last may be the older.
func TestALateErrorDoesNotBringAnOldNumberBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		n := &numbers{refresh: refreshAfter, logger: watermill.NopLogger{}}
		n.ask = func(context.Context, string) (queue.Partitioning, error) { return queue.Partitioning{Count: 12}, nil }
		_, err := n.of("orders")
		require.NoError(t, err)
		time.Sleep(refreshAfter)
		n.ask = func(context.Context, string) (queue.Partitioning, error) { return queue.Partitioning{}, <-answers }
		var late sync.WaitGroup
		late.Go(func() { _, _ = n.of("orders") })
		synctest.Wait()
		time.Sleep(refreshAfter + askFor)
		n.ask = func(context.Context, string) (queue.Partitioning, error) { return queue.Partitioning{Count: 24}, nil }
		_, err = n.of("orders")
		require.NoError(t, err)
		answers <- errors.New("too late")
		late.Wait()
		read, err := n.of("orders")
		require.NoError(t, err)
		require.Equal(t, 24, read.Count)
	})
}
