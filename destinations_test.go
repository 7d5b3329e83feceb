package redisdelay_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each row of the table of destinations in docs/relay.md has all cells, and names tests that exist.
// Or it says that it was not run, and why.
func TestDocsOfDestinationsNameTheirTests(t *testing.T) {
	const document = "docs/relay.md"
	_, table, found := strings.Cut(read(t, document), "\n| Destination | ")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	columns := strings.Count(lines[0], "|")
	link := regexp.MustCompile(`\[(Test\w+)\]\(([^)]+)\)`)
	run := 0
	for _, line := range lines[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		name, tests := cells[0], cells[len(cells)-1]
		require.Len(t, cells, columns+1, "%s: want a cell for each column", name)
		if strings.HasPrefix(tests, "not run: ") {
			continue
		}
		run++
		links := link.FindAllStringSubmatch(tests, -1)
		require.NotEmpty(t, links, "%s: want a link to a test, or \"not run: \" and why", name)
		for _, l := range links {
			file := filepath.Join(filepath.Dir(document), l[2])
			require.True(t, strings.Contains(read(t, file), "\nfunc "+l[1]+"("), "%s: %s has no %s", name, file, l[1])
		}
	}
	require.GreaterOrEqual(t, run, 6)
}
