package faulttest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Each text to edit must occur in its script once. A change of the scripts fails here first.
func TestEveryEditFitsItsScript(t *testing.T) {
	for broken, edit := range edits {
		for from := range edit.changes {
			require.Equal(t, 1, strings.Count(queue.Scripts()[edit.script], from), "%s: %q in %s.lua", broken, from, edit.script)
		}
	}
}
