package guard_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

func TestAPanicIsAnError(t *testing.T) {
	t.Parallel()
	call := func(f func()) (err error) {
		defer guard.Recover(&err, "it")
		f()
		return io.EOF
	}
	require.Equal(t, io.EOF, call(func() {}))
	require.EqualError(t, call(func() { panic("odd") }), "it panicked: odd")
	require.NoError(t, guard.Apart("it", func() {}))
	require.EqualError(t, guard.Apart("it", func() { panic("odd") }), "it panicked: odd")
	require.EqualError(t, guard.Apart("it", runtime.Goexit), "it called runtime.Goexit")
}

func TestOnExitIsForGoexitOnly(t *testing.T) {
	t.Parallel()
	exits := 0
	call := func(f func()) {
		returned := false
		defer guard.OnExit(&returned, func() { exits++ })
		f()
		returned = true
	}
	call(func() {})
	require.PanicsWithValue(t, "odd", func() { call(func() { panic("odd") }) })
	require.Zero(t, exits)
	require.Error(t, guard.Apart("it", func() { call(runtime.Goexit) }))
	require.Equal(t, 1, exits)
}

type typed struct{ text string }

func (e *typed) Error() string { return e.text }

type exiting struct{}

func (exiting) Error() string { runtime.Goexit(); return "" }

type wraps struct{ error }

func (wraps) Unwrap() error { panic("odd") }

func TestAnErrorThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	require.NoError(t, guard.Sound(nil))
	for _, sound := range []error{io.EOF, &typed{"text"}, errors.Join(io.EOF)} {
		require.Equal(t, sound, guard.Sound(sound))
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{(*typed)(nil), "Error or Is of an error of type *guard_test.typed panicked: runtime error: invalid memory address or nil pointer dereference"},
		{exiting{}, "Error or Is of an error of type guard_test.exiting called runtime.Goexit"},
		{wraps{io.EOF}, "Error or Is of an error of type guard_test.wraps panicked: odd"},
	} {
		require.EqualError(t, guard.Sound(c.err), c.want)
	}
}

type odd struct{ context.Context }

func (odd) Err() error { panic("odd") }

func TestAContextThatPanicsHasEnded(t *testing.T) {
	t.Parallel()
	require.NoError(t, guard.Err(t.Context()))
	require.EqualError(t, guard.Err(odd{}), "the context panicked: odd")
}

// failing is a logger of which some lines, or With, fail.
type failing struct {
	*watermill.CaptureLoggerAdapter
	fail func(line string)
}

func (f failing) Error(msg string, err error, fields watermill.LogFields) {
	f.fail(msg)
	f.CaptureLoggerAdapter.Error(msg, err, fields)
}

func (f failing) Info(msg string, fields watermill.LogFields) {
	f.fail(msg)
	f.CaptureLoggerAdapter.Info(msg, fields)
}

func (f failing) With(watermill.LogFields) watermill.LoggerAdapter {
	f.fail("With")
	return nil
}

func TestALoggerThatFailsLosesItsLineOnly(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){"panic": func() { panic("odd") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			captured := watermill.NewCaptureLogger()
			logger := guard.Logger(failing{captured, func(line string) {
				if line == "bad" || line == "With" {
					fail()
				}
			}})
			logger.Info("bad", nil)
			logger.Info("good", nil)
			logger.With(nil).Error("after With", io.EOF, nil)
			var lines []string
			for _, level := range []watermill.LogLevel{watermill.InfoLogLevel, watermill.ErrorLogLevel} {
				for _, line := range captured.Captured()[level] {
					lines = append(lines, line.Msg)
					if lost := line.Fields["line"]; lost != nil {
						lines = append(lines, lost.(string))
					}
				}
			}
			told := "The logger has failed, and a log line is lost"
			require.Equal(t, []string{"good", told, "bad", told, "With", "after With"}, lines)
		})
	}
}

func TestALoggerThatAlwaysFailsIsNotAskedForEver(t *testing.T) {
	t.Parallel()
	calls := 0
	logger := guard.Logger(failing{watermill.NewCaptureLogger(), func(string) { calls++; panic("odd") }})
	logger.Error("line", io.EOF, nil)
	require.Equal(t, 2, calls, "the line, and that it was lost")
	var none *watermill.StdLoggerAdapter
	guard.Logger(none).Info("line", nil)
}

func TestALoggerIsWrappedOnce(t *testing.T) {
	t.Parallel()
	require.Equal(t, watermill.NopLogger{}, guard.Logger(nil))
	logger := guard.Logger(watermill.NewCaptureLogger())
	require.Equal(t, logger, guard.Logger(logger))
}

func TestABackoffThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	captured := watermill.NewCaptureLogger()
	fallback := func(delivery int) time.Duration { return time.Duration(delivery) * time.Hour }
	own := func(delivery int) time.Duration {
		switch delivery {
		case 1:
			panic("odd")
		case 2:
			runtime.Goexit()
		}
		return time.Second
	}
	wait := guard.Backoff(own, fallback, captured)
	require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour, time.Second}, []time.Duration{wait(1), wait(2), wait(3)})
	require.Len(t, captured.Captured()[watermill.ErrorLogLevel], 2)
}
