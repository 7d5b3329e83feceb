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
	s := newSettings(nil)
	declareRelay(s)
	var table strings.Builder
	table.WriteString("| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n")
	for _, r := range s.rows() {
		byDefault := r.byDefault
		if byDefault != "" {
			byDefault = "`" + byDefault + "`"
		}
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s | %s |\n", r.flag, r.variable, byDefault, r.meaning)
	}
	text, err := os.ReadFile("../../docs/relay.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "<!-- settings:begin -->\n")
	section, _, _ = strings.Cut(section, "<!-- settings:end -->")
	require.Equal(t, table.String(), section, "docs/relay.md, between the marks")
}
