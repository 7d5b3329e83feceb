package redistest

import (
	"strconv"
	"strings"
)

// Parts are those of a reply that a text describes, a line each: "nil", a number such as "#1", or a
// text. The reply is whole if all are texts, and none is a number or not there.
func Parts(text string) (parts []any, whole bool) {
	whole = true
	for part := range strings.SplitSeq(text, "\n") {
		switch {
		case part == "nil":
			parts, whole = append(parts, nil), false
		case strings.HasPrefix(part, "#"):
			n, _ := strconv.ParseInt(part[1:], 10, 64)
			parts, whole = append(parts, n), false
		default:
			parts = append(parts, part)
		}
	}
	if text == "" {
		parts = nil
	}
	return parts, whole
}
