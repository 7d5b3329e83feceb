package main

import (
	"strings"

	"github.com/mattn/go-runewidth"
)

// wide is how wide characters are on a terminal, whatever the locale: those of Chinese, Japanese
// and Korean take two columns.
var wide = &runewidth.Condition{StrictEmojiNeutral: true}

// columns returns how many columns of a terminal a text takes, without its escape sequences.
func columns(text string) (n int) {
	for {
		before, after, is := strings.Cut(text, "\x1b[")
		n += wide.StringWidth(before)
		if !is {
			return n
		}
		if _, text, is = strings.Cut(after, "m"); !is {
			return n
		}
	}
}

// cut returns at most n columns of a text.
func cut(text string, n int) string {
	if wide.StringWidth(text) <= n {
		return text
	}
	return wide.Truncate(text, max(n, 1), "…")
}
