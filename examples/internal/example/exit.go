package example

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Exit ends the program: with 0 if err is nil, with 130 if a signal cancelled ctx and err is about
// that, else with 1.
func Exit(ctx context.Context, logger *slog.Logger, err error) {
	switch {
	case err == nil:
		os.Exit(0)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Println("Interrupted.")
		os.Exit(130)
	default:
		logger.Error("failed", "error", err)
		os.Exit(1)
	}
}

var (
	errDone    = errors.New("done")
	errTooLong = errors.New("waited long enough")
)

// Until returns a context for a router, which ends with ctx, after limit, or when done is called.
// why then returns the reason, nil for done.
func Until(ctx context.Context, limit time.Duration) (running context.Context, done func(), why func() error) {
	running, finish := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { finish(errTooLong) })
	done = func() {
		timer.Stop()
		finish(errDone)
	}
	why = func() error {
		if cause := context.Cause(running); cause != errDone {
			return cause
		}
		return nil
	}
	return running, done, why
}

// Timeline prints events, with the seconds since its start.
type Timeline struct{ began time.Time }

// NewTimeline returns a timeline that starts now.
func NewTimeline() Timeline { return Timeline{began: time.Now()} }

// Printf prints one line.
func (t Timeline) Printf(format string, args ...any) {
	fmt.Printf("%.3fs  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}
