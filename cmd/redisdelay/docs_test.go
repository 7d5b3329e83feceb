package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table in docs/relay.md is generated from the settings.
func TestSettingsAreDescribed(t *testing.T) {
	t.Parallel()
	a, err := parsed(nil)
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n")
	for _, r := range a.settings.rows(a.relay.Flags()) {
		byDefault := r.byDefault
		if byDefault != "" {
			byDefault = "`" + byDefault + "`"
		}
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s | %s |\n", r.flag, r.variable, byDefault, r.meaning)
	}
	requireSection(t, "../../docs/relay.md", "<!-- settings:begin -->\n", "<!-- settings:end -->", table.String())
}

// updates makes tests write their golden files and sections of documents anew: UPDATE=1 go test.
var updates = os.Getenv("UPDATE") == "1"

// requireSection requires that a document has this text between two marks.
func requireSection(t *testing.T, file, begin, end, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	section, after, ends := strings.Cut(rest, end)
	require.True(t, found && ends, "%s lacks %s or %s", file, begin, end)
	if updates && section != want {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+want+end+after), 0o644))
		return
	}
	if section != want {
		t.Errorf("%s, behind %s, is not as it should be; UPDATE=1 writes it. It should be\n%s", file, strings.TrimSpace(begin), want)
	}
}
