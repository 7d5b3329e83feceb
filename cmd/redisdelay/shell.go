package main

import (
	"regexp"
	"slices"
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

// named returns the arguments of a command with names behind them. If one begins with a dash, "--"
// comes before the names.
func named(command []string, names ...string) []string {
	if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "-") }) {
		command = append(slices.Clip(command), "--")
	}
	return append(slices.Clip(command), names...)
}
