package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// Meanwhile the registry is read once a second.
func TestSchedulerOfAllTopicsLogsAnOutageOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, refused := testkit.Unreachable(t)
		logged := watermill.NewCaptureLogger()
		s, err := scheduler.New(scheduler.Config{Client: client}, logged)
		require.NoError(t, err)
		running, stop := context.WithCancel(t.Context())
		ended := testkit.Begin(func() error { return s.Run(running) })
		time.Sleep(5 * time.Minute)
		stop()
		require.NoError(t, <-ended)
		require.Greater(t, refused.Load(), int32(100))
		errs := logged.Captured()[watermill.ErrorLogLevel]
		require.Len(t, errs, 1)
		require.Equal(t, "Cannot read the registry of topics, trying again", errs[0].Msg)
	})
}

func TestSchedulerOfAllTopicsOutlivesAHookThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, _ := testkit.Unreachable(t)
		var calls atomic.Int32
		client.AddHook(redistest.BeforeEach(func(redis.Cmder) error {
			calls.Add(1)
			panic("odd")
		}))
		logged := watermill.NewCaptureLogger()
		s, err := scheduler.New(scheduler.Config{Client: client}, logged)
		require.NoError(t, err)
		s.Add("named")
		running, stop := context.WithCancel(t.Context())
		ended := testkit.Begin(func() error { return s.Run(running) })
		time.Sleep(5 * time.Minute)
		stop()
		require.NoError(t, <-ended)
		require.Greater(t, calls.Load(), int32(300), "the registry is read, and the topic promoted, again and again")
		errs := logged.Captured()[watermill.ErrorLogLevel]
		require.Len(t, errs, 2)
		for _, line := range errs {
			require.ErrorContains(t, line.Err, "a call to Redis panicked: odd")
		}
	})
}

// Without permission to listen, new topics are found by polling, up to half a minute late.
func TestSchedulerOfAllTopicsLogsThatItMayNotListen(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	require.NoError(t, in.Client(t).Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "&redisdelay:mailbox:*", "+@all").Err())
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: "app", Password: "secret"})
	defer client.Close()
	logger := &firstLines{lines: make(chan string, 100)}
	s, err := scheduler.New(scheduler.Config{Client: client}, logger)
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	require.Equal(t, "Cannot listen for new topics, looking for them twice a minute", <-logger.lines)
	stop()
	require.NoError(t, <-ended)
	close(logger.lines)
	for line := range logger.lines {
		require.NotContains(t, line, "registry")
	}
}

// firstLines sends the messages of errors and infos to a channel.
type firstLines struct {
	watermill.NopLogger
	lines chan string
}

func (l *firstLines) Error(msg string, _ error, _ watermill.LogFields) { l.lines <- msg }
func (l *firstLines) Info(msg string, _ watermill.LogFields)           { l.lines <- msg }
func (l *firstLines) With(watermill.LogFields) watermill.LoggerAdapter { return l }
