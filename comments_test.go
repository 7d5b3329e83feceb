package redisdelay_test

import (
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// shortComments has the folders, with all below them, and files that are checked.
var shortComments = []string{
	"config.go", "doc.go", "errors.go",
	"marshaler.go", "marshaler_binary.go", "marshaler_json.go", "marshaler_stream.go",
	"admin", "cmd/redisdelay", "delayqueue", "examples", "internal/faulttest", "internal/queuetest", "internal/rabbitmqtest",
	"internal/readme", "internal/redistest", "internal/consume", "internal/meta", "internal/publish", "internal/queue/lua", "redisdelaytest", "relay", "scheduler",
}

// Tables, URLs and compiler directives may be longer, because they cannot be wrapped.
func TestCommentLinesHaveAtMost100Columns(t *testing.T) {
	walk(t, func(file string) {
		code := path.Ext(file) == ".go" || path.Ext(file) == ".lua"
		short := slices.ContainsFunc(shortComments, func(part string) bool {
			return file == part || strings.HasPrefix(file, part+"/")
		})
		if !code || !short || strings.HasSuffix(file, "_test.go") {
			return
		}
		for i, line := range strings.Split(read(t, file), "\n") {
			text := strings.TrimSpace(line)
			comment := strings.HasPrefix(text, "// ") || strings.HasPrefix(text, "--")
			columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if comment && columns > 100 && !strings.Contains(text, "|") && !strings.Contains(text, "://") {
				t.Errorf("%s:%d: a comment line of %d columns, want at most 100", file, i+1, columns)
			}
		}
	})
}
