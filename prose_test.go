package redisdelay_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProseOfDocumentsIsPlain checks the sentences of all Markdown files. A sentence has at most
// 25 words, and a thing with a name as its subject, not a clause. Documents say what is true now.
func TestProseOfDocumentsIsPlain(t *testing.T) {
	const mostWords = 25
	clause := regexp.MustCompile(`^(Who|What|Whoever|Whatever|Those|Where|Which|How|Until when|From when|Since when) [^?]*$`)
	story := regexp.MustCompile(`(?i)\b(as \w+ once|measured once|it seems|so far|in run \d|used to be|in an earlier|formerly|previously|a former)\b`)
	for _, file := range documents(t) {
		if generated(file) {
			continue
		}
		for _, s := range sentences(read(t, file)) {
			if words := strings.Fields(s.text); len(words) > mostWords {
				t.Errorf("%s:%d: a sentence of %d words, want at most %d: %s", file, s.line, len(words), mostWords, s.text)
			}
			if clause.MatchString(s.text) && !s.title {
				t.Errorf("%s:%d: the sentence begins with a clause: %s", file, s.line, s.text)
			}
			if said := story.FindString(s.text); said != "" && file != "benchmarks/history.md" {
				t.Errorf("%s:%d: %q tells history: %s", file, s.line, said, s.text)
			}
		}
	}
}

// generated tells whether a program writes the whole document.
func generated(file string) bool {
	return path.Base(file) == "results.md" && strings.HasPrefix(file, "benchmarks/")
}

// sentence is one of a document. Its code is replaced by CODE, and its links by their texts.
type sentence struct {
	line  int
	text  string
	title bool // it begins with a link, whose text is a title, or is the heading of a table's column
}

var (
	textBeforeEnd = regexp.MustCompile(`[.!?]['"*)]*\s+`)
	listItem      = regexp.MustCompile(`^([-*]|\d+\.) `)
	codeSpan      = regexp.MustCompile("`[^`]*`")
	link          = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	beginMark     = regexp.MustCompile(`^<!-- \w+:begin -->`)
	endMark       = regexp.MustCompile(`^<!-- \w+:end -->`)
)

// sentences returns the sentences of a document: those of its paragraphs, list items and cells of
// tables, without headings, code and the parts that programs write.
func sentences(document string) (found []sentence) {
	var block []string // the lines of the text that is being read
	begin := 0         // the number of its first line
	end := func(heading bool) {
		text := codeSpan.ReplaceAllString(strings.Join(block, " "), "CODE")
		block = nil
		for len(text) > 0 {
			rest := ""
			if at := textBeforeEnd.FindStringIndex(text); at != nil {
				text, rest = text[:at[1]], text[at[1]:]
			}
			s := sentence{line: begin, title: heading || strings.HasPrefix(text, "[")}
			s.text = strings.TrimSpace(strings.ReplaceAll(link.ReplaceAllString(text, "$1"), "**", ""))
			found = append(found, s)
			text = rest
		}
	}
	lines := strings.Split(document, "\n")
	fenced, written := false, false
	for i, line := range lines {
		text := strings.TrimSpace(line)
		isCode := strings.HasPrefix(line, "    ") && len(block) == 0 && !listItem.MatchString(text)
		switch {
		case strings.HasPrefix(text, "```"):
			end(false)
			fenced = !fenced
		case beginMark.MatchString(text):
			end(false)
			written = true
		case endMark.MatchString(text):
			written = false
		case fenced, written, isCode, strings.HasPrefix(text, "|--"):
		case strings.HasPrefix(text, "|"):
			end(false)
			begin = i + 1
			heading := i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "|--")
			for _, cell := range strings.Split(strings.Trim(text, "|"), " | ") {
				block = []string{strings.TrimSpace(cell)}
				end(heading)
			}
		case text == "", strings.HasPrefix(text, "#"), strings.HasPrefix(text, "!["), strings.HasPrefix(text, "<"):
			end(false)
		default:
			if listItem.MatchString(text) {
				end(false)
				text = text[strings.Index(text, " ")+1:]
			}
			if len(block) == 0 {
				begin = i + 1
			}
			block = append(block, text)
		}
	}
	end(false)
	return found
}

// The check of prose finds what it is for, and reads Markdown as it is meant.
func TestProseOfDocumentsIsRead(t *testing.T) {
	var texts []string
	for _, s := range sentences("# No sentence\n\nOne `x. y` is\nread. Is this?\n\n    no. code\n\n- An item. [What](x.md) is *it*.\n\n" +
		"| How | b |\n|---|---|\n| c. D | `e` |\n\n```go\nno.\n```\n\n<!-- x:begin -->\nno.\n<!-- x:end -->\nLast.") {
		if !s.title {
			texts = append(texts, s.text)
		}
	}
	require.Equal(t, []string{"One CODE is read.", "Is this?", "An item.", "c.", "D", "CODE", "Last."}, texts)
}

// Documents that are to be read to the end are short.
func TestDocumentsAreShort(t *testing.T) {
	for file, most := range map[string]int{
		"README.md": 200, "docs/reliability.md": 200, "docs/performance.md": 180,
		"docs/design.md": 300, "docs/design-cluster.md": 120, "docs/design-operators.md": 120,
	} {
		require.LessOrEqual(t, strings.Count(read(t, file), "\n"), most, "%s has too many lines", file)
	}
}

// docs/README.md has a line for each document of docs, and docs/adr/README.md for each decision.
// Every other document is reached by links from one of the two.
func TestDocumentsAreInTheIndex(t *testing.T) {
	listed := submatches(`\]\(([^)#]+)\)`, read(t, "docs/README.md"))
	for i, file := range listed {
		listed[i] = path.Join("docs", file)
		if path.Ext(file) == "" {
			listed[i] += "/README.md"
		}
	}
	decisions := submatches(`\]\(([^)#]+)\)`, read(t, "docs/adr/README.md"))
	for _, file := range documents(t) {
		switch {
		case path.Dir(file) == "docs/adr" && path.Base(file) != "README.md":
			require.Contains(t, decisions, path.Base(file), "docs/adr/README.md")
		case file != "docs/README.md":
			require.True(t, slices.Contains(listed, file), "docs/README.md does not list %s", file)
		}
	}
}
