package guard

import "github.com/ThreeDotsLabs/watermill"

// Logger returns a logger that passes all on to l. A line is lost if l panics or calls
// runtime.Goexit. Then the logger tells l of the loss, once for each line. A nil l logs nothing.
func Logger(l watermill.LoggerAdapter) watermill.LoggerAdapter {
	switch l.(type) {
	case nil:
		return watermill.NopLogger{}
	case watermill.NopLogger, logger:
		return l
	}
	return logger{l}
}

type logger struct{ user watermill.LoggerAdapter }

func (l logger) Error(msg string, err error, fields watermill.LogFields) {
	l.write(msg, func() { l.user.Error(msg, err, fields) })
}

func (l logger) Info(msg string, fields watermill.LogFields) {
	l.write(msg, func() { l.user.Info(msg, fields) })
}

func (l logger) Debug(msg string, fields watermill.LogFields) {
	l.write(msg, func() { l.user.Debug(msg, fields) })
}

func (l logger) Trace(msg string, fields watermill.LogFields) {
	l.write(msg, func() { l.user.Trace(msg, fields) })
}

// With returns a logger with the fields. If the user's With fails, the logger stays without them.
func (l logger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	with := l.user
	l.write("With", func() {
		if made := l.user.With(fields); made != nil {
			with = made
		}
	})
	return logger{with}
}

// write has the user's logger write a line, and tries once to log that it was lost.
func (l logger) write(line string, write func()) {
	if err := Apart("the logger", write); err != nil {
		_ = Apart("the logger", func() {
			l.user.Error("The logger has failed, and a log line is lost", err, watermill.LogFields{"line": line})
		})
	}
}
