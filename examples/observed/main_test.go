package main

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// installed installs Prometheus if the tests need all programs, and else skips the test without it.
func installed(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err == nil {
		return
	}
	if os.Getenv("REDISTEST_REQUIRED") != "1" {
		t.Skip("there is no prometheus in PATH")
	}
	out, err := exec.Command("../../scripts/install.sh", "prometheus").CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestPrometheusCountsEveryMessage(t *testing.T) {
	installed(t)
	program := exampletest.Build(t)
	exampletest.OnBoth(t, func(t *testing.T, addr string) {
		p := exampletest.Start(t, program, addr)
		out, status := p.End(t)
		require.Zero(t, status, "%s%s", out, p.Stderr())
		for _, line := range []string{
			`published: +200`, `delivered: +220`, `acked: +196`, `retried: +20`, `died, by cause: +4 asked`,
			`waiting, by state: +0 in_hand, 0 ready, 0 retrying, 4 dead`, `99 % are at most so late: +\d[.\de-]*`,
			`subscribed: +1`, `the exporter is not up: +no`, `a scheduler fails: +no`,
		} {
			require.Regexp(t, `(?m)^`+line+`$`, out)
		}
		exampletest.RequireRemoved(t, addr, out)
	})
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		p := exampletest.Start(t, program, "")
		p.ReadUntil(t, regexp.MustCompile(`^Published 200 invoices`))
		p.Interrupt(t)
		out, status := p.End(t)
		require.Equal(t, 130, status, "%s%s", out, p.Stderr())
	})
}
