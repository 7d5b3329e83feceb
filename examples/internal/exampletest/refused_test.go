package exampletest

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEveryExampleEndsOnAServerThatRefuses(t *testing.T) {
	programs, err := filepath.Glob("../../*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, main := range programs {
		dir := filepath.Dir(main)
		if filepath.Base(dir) == "outbox" { // its own test does it, since it needs PostgreSQL
			continue
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			EndsOnAServerThatRefuses(t, dir)
		})
	}
}
