package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// A program reads with the types of package admin what commands print with --json. They lack only
// the topic that some lines have besides.
func TestPrintedObjectsCanBeReadBack(t *testing.T) {
	t.Parallel()
	for golden, of := range map[string]any{
		"topics": admin.Stats{}, "groups-ls": admin.GroupStats{}, "groups-idle": admin.GroupStats{}, "workers": admin.Worker{},
		"upcoming": admin.Bucket{}, "dead-reasons": admin.DeadReason{}, "dead-ls": admin.Message{}, "msg-ls": admin.Message{},
		"msg-get": admin.Message{}, "check": admin.Finding{}, "doctor": admin.Folded{}, "schedules-ls": admin.Schedule{}, "audit": admin.Act{},
	} {
		printed, err := os.ReadFile("testdata/golden/" + golden + ".txt")
		require.NoError(t, err)
		lines := 0
		for line := range bytes.Lines(printed) {
			if line[0] != '{' {
				continue
			}
			lines++
			read := reflect.New(reflect.TypeOf(of))
			require.NoError(t, json.Unmarshal(line, read.Interface()), "%s: %s", golden, line)
			again, err := json.Marshal(read.Interface())
			require.NoError(t, err)
			var want, got map[string]any
			require.NoError(t, json.Unmarshal(line, &want))
			require.NoError(t, json.Unmarshal(again, &got))
			if got["topic"] == nil {
				delete(want, "topic")
			}
			require.Equal(t, want, got, "%s: %s", golden, line)
		}
		require.NotZero(t, lines, golden)
	}
}
