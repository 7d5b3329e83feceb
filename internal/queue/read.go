package queue

import (
	"math"
	"strconv"
	"time"
)

// Text returns a part of a reply as a text, or "" if it is none.
func Text(part any) string {
	s, _ := part.(string)
	return s
}

// Most is the largest integer that Lua and scores hold exactly. Larger numbers are read as Most.
const Most = 1 << 53

// Instant reads a time in milliseconds. It returns zero if the text is no number.
func Instant(ms string) time.Time {
	f, err := strconv.ParseFloat(ms, 64)
	if ms == "" || err != nil || math.IsNaN(f) {
		return time.Time{}
	}
	return time.UnixMilli(int64(min(max(f, -Most), Most)))
}
