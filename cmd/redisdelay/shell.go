package main

import (
	"regexp"
	"strings"
)

// needsQuotes matches arguments that a shell would change.
var needsQuotes = regexp.MustCompile(`[^A-Za-z0-9_./:=@%+,-]|^$`)

// commandLine returns a command of the tool as one would type it in a shell. Characters that a
// terminal would not show are written as $'\x1b'.
func commandLine(args ...string) string {
	line := "redisdelay"
	for _, arg := range args {
		switch {
		case clean(arg) != arg:
			arg = "$'" + strings.ReplaceAll(shellEscaped(arg), "'", `\'`) + "'"
		case needsQuotes.MatchString(arg):
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		line += " " + arg
	}
	return line
}

// shellEscaped returns a text with each byte that is not plain ASCII as \x1b, for $'...'.
func shellEscaped(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c < ' ' || c >= 0x7f:
			const digits = "0123456789abcdef"
			b.WriteString(`\x` + string(digits[c>>4]) + string(digits[c&15]))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
