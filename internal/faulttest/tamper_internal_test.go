package faulttest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// What is to be broken is there, once: a change of the scripts shows here first.
func TestEveryEditIsOfAScriptAsItIs(t *testing.T) {
	for broken, edit := range edits {
		for from := range edit.changes {
			require.Equal(t, 1, strings.Count(queue.Scripts()[edit.script], from), "%s: %q in %s.lua", broken, from, edit.script)
		}
	}
}
