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

// NamesMost is how many names Names returns at most.
const NamesMost = 10

// Names returns the first of some names in quotes, and how many more there are.
func Names(names []string) string {
	all := make([]string, min(len(names), NamesMost))
	for i := range all {
		all[i] = strconv.Quote(names[i])
	}
	text := strings.Join(all, ", ")
	if more := len(names) - len(all); more > 0 {
		text += ", and " + Number(more) + " more"
	}
	return text
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

// Bytes returns a number of bytes in its largest unit, such as "1.2 kB" or "17 MB".
func Bytes(n int) string {
	size, units := float64(n), []string{"B", "kB", "MB", "GB", "TB"}
	at := 0
	for size >= 999.5 && at < len(units)-1 {
		size, at = size/1000, at+1
	}
	if at > 0 && size < 9.95 {
		return strconv.FormatFloat(size, 'f', 1, 64) + " " + units[at]
	}
	return strconv.FormatFloat(size, 'f', 0, 64) + " " + units[at]
}
