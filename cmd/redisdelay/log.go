package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// logSettings are settings of the log, the same for all commands.
type logSettings struct {
	format *choice
	level  *choice
}

func (l *logSettings) declare(s *settings) {
	l.format = s.choice("log-format", "text", "`text` or `json`, on standard error", "text", "json")
	l.level = s.choice("log-level", "info", "`debug`, `info`, `warn` or `error`: the lowest level that is logged", "debug", "info", "warn", "error")
}

func (l *logSettings) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.level.value)) // a choice
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if l.format.value == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	return slog.New(handler)
}

// redisLog logs the Redis client's own messages as debug. They are failures to connect, which the
// relay also logs, once per outage.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, args ...any) {
	slog.DebugContext(ctx, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
