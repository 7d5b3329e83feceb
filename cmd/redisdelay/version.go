package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versions is the object of the command version.
type versions struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func currentVersions() versions {
	return versions{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
}

func (v versions) String() string {
	return fmt.Sprintf("redisdelay %s, %s, %s", v.Version, v.Go, v.Platform)
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs, Example: "  redisdelay version --json",
		RunE: a.runs(func(context.Context, []string) error {
			v := currentVersions()
			a.out.say(v, "%s", v)
			return nil
		})}
	a.jsonFlag(c.Flags())
	return c
}

// version returns the version that the go command recorded in the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown version)"
	}
	return info.Main.Version
}
