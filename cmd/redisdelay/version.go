package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
)

func prepareVersion(*settings) func(context.Context, *slog.Logger, system) error {
	return func(_ context.Context, _ *slog.Logger, sys system) error {
		_, err := fmt.Fprintf(sys.stdout, "redisdelay %s, %s, %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
}

// version returns the version that the go command recorded in the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown version)"
	}
	return info.Main.Version
}
