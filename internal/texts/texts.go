// Package texts writes numbers for people, and cuts texts.
package texts

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Number returns a number with commas, such as "5,000".
func Number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Many returns a number of things, such as "1 message", "2 deliveries" or "5,000 messages".
func Many(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "y"):
		return Number(n) + " " + strings.TrimSuffix(thing, "y") + "ies"
	default:
		return Number(n) + " " + thing + "s"
	}
}

// Clip returns at most so many bytes of a text, without a character that would be cut. Of a text
// that is not UTF-8 it returns all of the bytes.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for i := range min(utf8.UTFMax, most) {
		if utf8.RuneStart(text[most-i]) {
			return text[:most-i]
		}
	}
	return text[:most]
}
