package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestTheDocumentShowsTheOutputOfTheWalk(t *testing.T) {
	program := filepath.Join(t.TempDir(), "states")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	text, err := os.ReadFile("../../docs/redis-keys.md")
	require.NoError(t, err)
	_, documented, _ := strings.Cut(string(text), "\n## A walk through the states\n")
	_, documented, _ = strings.Cut(documented, "```\n")
	documented, _, _ = strings.Cut(documented, "```\n")
	documented = withoutChance(documented)

	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		addr := ""
		if s.Mini == nil {
			addr = redistest.Addr(t)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "-prefix", s.Prefix)
		cmd.Env = append(os.Environ(), "REDIS_ADDR="+addr)
		printed, err := cmd.Output()
		require.NoError(t, err)
		happened := strings.ReplaceAll(string(printed), s.Prefix, "states")
		require.Equal(t, documented, withoutChance(strings.TrimPrefix(happened, "\n")))
	})
}

// withoutChance replaces IDs, random texts, receivers and times, which differ between runs.
func withoutChance(text string) string {
	text = regexp.MustCompile(`\b[0-9A-Z]{26}\b`).ReplaceAllString(text, "ID")
	text = regexp.MustCompile(`\b[0-9A-Z]{16}(\|\d+)?\b`).ReplaceAllString(text, "RANDOM")
	return regexp.MustCompile(`\b\d{13}\b`).ReplaceAllString(text, "TIME")
}
