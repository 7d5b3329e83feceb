package redisdelay_test

import (
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCommentsArePlain checks the comments of Go and Lua files. A line has at most 100 columns,
// unless it is a table, a URL or a form of bytes, which cannot be wrapped. A comment has a thing
// with a name as its subject, and does not begin with a clause.
func TestCommentsArePlain(t *testing.T) {
	clause := regexp.MustCompile(`^(//|--) (Who|What|Those|Whoever|Whatever|Where|That) `)
	walk(t, func(file string) {
		if ext := path.Ext(file); ext != ".go" && ext != ".lua" {
			return
		}
		before := "" // the line before
		for i, line := range strings.Split(read(t, file), "\n") {
			text := strings.TrimSpace(line)
			comment := strings.HasPrefix(text, "// ") || strings.HasPrefix(text, "--")
			columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if comment && columns > 100 && !strings.HasPrefix(text, "//   ") && !strings.Contains(text, "|") && !strings.Contains(text, "://") {
				t.Errorf("%s:%d: a comment line of %d columns, want at most 100", file, i+1, columns)
			}
			if clause.MatchString(text) && !strings.HasPrefix(before, text[:2]) {
				t.Errorf("%s:%d: the comment begins with a clause: %s", file, i+1, text)
			}
			before = text
		}
	})
}
