package redisdelay_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStatesHaveOneName checks that the state of a message is called waiting, ready, in hand,
// retrying or dead, except where a key of Redis is meant that has another name.
func TestStatesHaveOneName(t *testing.T) {
	t.Parallel()
	// These are about the keys.
	about := []string{
		"internal/queue/", "internal/test/queuetest/", "internal/operate/audit", "internal/operate/inspect.go",
		"internal/operate/passing.go", "internal/operate/recall.go", "docs/redis-keys.md", "docs/design", "docs/adr/",
		"docs/performance", "benchmarks/", "states_test.go",
	}
	key := regexp.MustCompile(`[}:](pending|unack|retry)\b|[kK]ey\("(pending|unack|retry)\b|\.(Pending|Unack)\(`)
	old := regexp.MustCompile(`(?i)\b(pending|unack)\b|\bstate\W{1,4}retry\b|\bpending_messages\b`)
	kinds := []string{".go", ".lua", ".md", ".html", ".js", ".json", ".yml", ".sh"}
	looked := 0
	walk(t, func(file string) {
		if !slices.Contains(kinds, path.Ext(file)) || slices.ContainsFunc(about, func(p string) bool { return strings.HasPrefix(file, p) }) {
			return
		}
		looked++
		for i, line := range strings.Split(read(t, file), "\n") {
			if lower := strings.ToLower(line); !strings.Contains(lower, "pending") && !strings.Contains(lower, "unack") && !strings.Contains(lower, "retry") {
				continue // as most: expressions take long under the race detector
			}
			if found := old.FindString(key.ReplaceAllString(line, "")); found != "" {
				t.Errorf("%s:%d: %s is the name of a key, and not of a state: %s", file, i+1, found, strings.TrimSpace(line))
			}
		}
	})
	if looked < 300 {
		t.Errorf("only %d files were looked at", looked)
	}
}

// TestTheStatesAreDrawnOnce checks that README and semantics.md have the same picture, and that
// its states have the names that the tool prints above its columns.
func TestTheStatesAreDrawnOnce(t *testing.T) {
	t.Parallel()
	picture := func(file string) string {
		_, rest, _ := strings.Cut(read(t, file), "```text\n Publish")
		drawn, _, _ := strings.Cut(rest, "```")
		return drawn
	}
	drawn := picture("README.md")
	if drawn == "" || drawn != picture("docs/semantics.md") {
		t.Errorf("README.md has the picture\n%s\nand docs/semantics.md\n%s", drawn, picture("docs/semantics.md"))
	}
	columns := regexp.MustCompile(`(?m)^TOPIC +PROBLEM +(WAITING.*DEAD) `).FindStringSubmatch(read(t, "README.md"))
	if columns == nil {
		t.Fatal("README.md does not show redisdelay top")
	}
	for _, state := range regexp.MustCompile(` {2,}`).Split(strings.ToLower(columns[1]), -1) {
		if !regexp.MustCompile(`[>─] ` + state + ` [─<]`).MatchString(drawn) {
			t.Errorf("the picture of the states lacks %q", state)
		}
	}
}
