package redisdelay_test

import (
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

// Tables, URLs and compiler directives may be longer, because they cannot be wrapped. The benchmarks
// are not checked.
func TestCommentLinesHaveAtMost100Columns(t *testing.T) {
	walk(t, func(file string) {
		code := path.Ext(file) == ".go" || path.Ext(file) == ".lua"
		if !code || strings.HasPrefix(file, "benchmarks/") || strings.HasSuffix(file, "_test.go") {
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
