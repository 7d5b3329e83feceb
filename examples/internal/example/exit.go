package example

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Exit ends the program: with 0 if err is nil, with 130 if ctx was cancelled by a signal and that is
// what err says, else with 1.
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

// Until returns a context to run a router with, which ends when done is called, with ctx, or after a
// limit. why says, after that, what ended it: nil for done.
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

// Timeline prints what happens, with the seconds since it was made.
type Timeline struct{ began time.Time }

// NewTimeline begins at zero.
func NewTimeline() Timeline { return Timeline{began: time.Now()} }

// Printf prints one line.
func (t Timeline) Printf(format string, args ...any) {
	fmt.Printf("%.3fs  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}
