package redisdelay_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

func TestGoCodeInDocumentsIsCompiled(t *testing.T) {
	compiled := ""
	walk(t, func(file string) {
		if name := path.Base(file); strings.HasPrefix(name, "example_") && strings.HasSuffix(name, "_test.go") {
			compiled += unindented(read(t, file))
		}
	})
	for _, glob := range []string{"examples/tutorial/step*/*.go", "examples/outbox/*.go", "examples/delayed-kafka/kafkaqueue/*.go", "examples/retry-kafka/*.go"} { // programs that documents quote
		files, err := filepath.Glob(glob)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			compiled += unindented(read(t, file))
		}
	}
	for _, file := range documents(t) {
		for _, block := range submatches("(?s)```go\n(.*?)```", read(t, file)) {
			require.Contains(t, compiled, unindented(block), "%s has code that is in no example_test.go", file)
		}
	}
}

func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

func TestDocumentsListTheMetadataKeys(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "docs/reference.md"), "\n## Metadata\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, key := range []string{
		redisdelay.DelayKey, redisdelay.DelayUntilKey, redisdelay.MaxDeliveriesKey, redisdelay.BackoffKey,
		redisdelay.DelayIDKey, redisdelay.DelayIDModeKey, redisdelay.DelayIDWindowKey,
		redisdelay.ExpiresAtKey, redisdelay.MaxLatenessKey, redisdelay.OnExpiryKey,
		delay.DelayedUntilKey, delay.DelayedForKey,
	} {
		require.Regexp(t, "(?m)^\\|.*`"+key+"`.*\\|.*\\|", section)
	}
}

// Every operation of package admin has an entry in docs/control.md, and an Example.
func TestOperationsAreDescribedAndShown(t *testing.T) {
	control, examples := read(t, "docs/control.md"), read(t, "admin/example_test.go")
	found := 0
	walk(t, func(file string) {
		if path.Dir(file) != "admin" || strings.HasSuffix(file, "_test.go") || !strings.HasSuffix(file, ".go") {
			return
		}
		for _, name := range submatches(`(?m)^func \(a \*Admin\) ([A-Z]\w*)\(`, read(t, file)) {
			found++
			require.Contains(t, control, "\n### "+name+"\n", "docs/control.md")
			require.Contains(t, examples, "func ExampleAdmin_"+name+"()", "admin/example_test.go")
		}
	})
	require.Greater(t, found, 20)
}

// Each helper that says by metadata what is to become of a message has an Example, as has each
// mode.
func TestMetadataHelpersAreShown(t *testing.T) {
	examples := read(t, "example_test.go") + read(t, "example_control_test.go")
	for _, name := range []string{"SetDelayID_replace", "SetDelayID_keep", "SetDelayID_reject", "SetDelayIDWindow",
		"ExpireAt", "ExpireAfter", "SetBackoff", "KeepError", "PostponeOnError", "PublisherConfig_maxWaiting"} {
		require.Contains(t, examples, "func Example"+name+"()")
	}
}

func TestRequirementsAreThoseOfTheModule(t *testing.T) {
	version := submatches(`(?m)^go (\d+\.\d+)`, read(t, "go.mod"))[0]
	require.Contains(t, read(t, "README.md"), "Go "+version+" or later")
	modules := 0
	walk(t, func(file string) {
		if filepath.Base(file) == "go.mod" && file != filepath.Join("benchmarks", "peers", "go.mod") { // peers need what they need
			modules++
			require.Equal(t, version, submatches(`(?m)^go (\d+\.\d+)`, read(t, file))[0], file)
		}
	})
	require.Greater(t, modules, 8)
}

// The embedded server is for tests: it is in no program that only uses the library.
func TestLibraryDoesNotContainTheEmbeddedServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "./admin", "./scheduler", "./delayqueue").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/redisdelay/watermill-redisdelay/internal/queue\n")
	require.NotContains(t, string(out), "miniredis")
	require.NotContains(t, string(out), "\ntesting\n")
}

func TestCommandsInDocumentsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	benchmarks := ""
	walk(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			benchmarks += strings.Join(submatches(`(?m)^func (Benchmark\w+)`, read(t, file)), " ") + " "
		}
	})
	for _, file := range documents(t) {
		text := read(t, file)
		for _, verb := range submatches(`(?m)(?:^ +|[\[`+"`"+`])make ([a-z-]+)`, text) {
			require.True(t, strings.Contains(makefile, "\n"+verb+":"), "%s: make %s", file, verb)
		}
		for _, program := range submatches(`go run \./([a-z/-]+)`, text) {
			require.FileExists(t, filepath.Join(program, "main.go"), file)
		}
		for _, pattern := range submatches(`-bench '?([^ '`+"`"+`]+)`, text) {
			for _, name := range strings.Split(pattern, "|") {
				name, _, _ = strings.Cut(name, "/")
				require.True(t, strings.Contains(benchmarks, name), "%s: -bench %s", file, pattern)
			}
		}
	}
}

// Files, directories and documents that are named exist: paths in the code of documents, and
// documents in the code of programs.
func TestPathsInDocumentsExist(t *testing.T) {
	exists := func(where, name string) {
		found, err := filepath.Glob(name)
		require.NoError(t, err)
		require.NotEmpty(t, found, "%s names %s", where, name)
	}
	top, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, file := range documents(t) {
		for _, name := range submatches("`([a-z]+/[a-z0-9_./*-]+)`", read(t, file)) {
			first, _, _ := strings.Cut(name, "/")
			if slices.ContainsFunc(top, func(e fs.DirEntry) bool { return e.IsDir() && e.Name() == first }) {
				exists(file, name)
			}
		}
	}
	walk(t, func(file string) {
		switch path.Ext(file) {
		case ".go", ".lua", ".sh", ".yml", ".yaml", ".service", "":
			for _, name := range submatches(`\b(docs/[a-z/-]+\.md)\b`, read(t, file)) {
				exists(file, name)
			}
		}
	})
}

func TestFilesToOpenForAChangeExist(t *testing.T) {
	_, text, found := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## To change X, open Y\n")
	require.True(t, found)
	table, _, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	rows := strings.Split(table, "\n")[2:]
	require.GreaterOrEqual(t, len(rows), 10)
	for _, row := range rows {
		names := submatches("`([^`]+)`", row)
		require.GreaterOrEqual(t, len(names), 2, row)
		for _, name := range names {
			_, err := os.Stat(name)
			require.NoError(t, err, row)
		}
	}
}

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		for _, link := range submatches(`\]\(([^)]+)\)`, read(t, file)) {
			if dir, ours := strings.CutPrefix(link, "https://pkg.go.dev/github.com/redisdelay/watermill-redisdelay"); ours {
				require.DirExists(t, "."+dir, "%s links to %s", file, link)
			}
			if strings.HasPrefix(link, "https://") {
				continue
			}
			target, heading, _ := strings.Cut(link, "#")
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			_, err := os.Stat(path)
			require.NoError(t, err, "%s links to %s", file, link)
			if heading != "" {
				require.Contains(t, anchors(read(t, path)), heading, "%s links to %s", file, link)
			}
		}
	}
}

// anchors are what links to the headings of a document end with.
func anchors(document string) []string {
	var anchors []string
	for _, heading := range submatches("(?m)^#+ (.+)$", document) {
		plain := regexp.MustCompile("[^a-z0-9 _-]").ReplaceAllString(strings.ToLower(heading), "")
		anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
	}
	return anchors
}

// The table of what happens twice in docs/design.md has a row for each script, and for nothing
// else.
func TestDesignTellsWhatASecondRunOfEachScriptDoes(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/design.md"), "\n| Script | The second run |\n|---|---|\n")
	var described []string
	for _, scripts := range submatches(`(?m)^\| ([a-z_, ]+) \|`, table) {
		described = append(described, strings.Split(scripts, ", ")...)
	}
	files, err := filepath.Glob("internal/queue/lua/*.lua")
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".lua"))
	}
	require.ElementsMatch(t, names, described)
}

// docs/design.md names a test for each invariant.
func TestTestsThatDesignNamesExist(t *testing.T) {
	_, invariants, _ := strings.Cut(read(t, "docs/design.md"), "\n## Invariants\n")
	invariants, _, _ = strings.Cut(invariants, "\n## ")
	stated := len(submatches(`(?m)^(\d+)\. `, invariants))
	proven := len(submatches("(?m)`(Test\\w+)`\\.$", invariants))
	require.NotZero(t, stated)
	require.Equal(t, stated, proven, "an invariant ends with no test")
	exists := map[string]bool{}
	walk(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			for _, name := range submatches(`(?m)^func (Test\w+)\(`, read(t, file)) {
				exists[name] = true
			}
		}
	})
	for _, name := range submatches("`(Test\\w+)`", invariants) {
		require.True(t, exists[name], "docs/design.md names a test that does not exist: %s", name)
	}
}

// Files that docs/design*.md name as the place of a mechanism exist somewhere in the module.
// Every package has a comment, which names only files of the package.
func TestFilesThatDesignAndPackageCommentsNameExist(t *testing.T) {
	base := map[string]bool{}
	comments := map[string]string{}
	walk(t, func(file string) {
		base[path.Base(file)] = true
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return
		}
		comment, _, _ := strings.Cut("\n"+read(t, file), "\npackage ")
		comments[path.Dir(file)] += comment[strings.LastIndex(comment, "\n\n")+1:]
	})
	designs, err := filepath.Glob("docs/design*.md")
	require.NoError(t, err)
	require.Len(t, designs, 3)
	for _, design := range designs {
		for _, file := range submatches("`([a-z_]+\\.(?:go|lua))`", read(t, design)) {
			require.True(t, base[file], "%s names %s", design, file)
		}
	}
	for dir, comment := range comments {
		require.NotEmpty(t, strings.TrimSpace(comment), "%s has no package comment", dir)
		if strings.HasPrefix(dir, "internal/") {
			for _, file := range submatches(`\b([a-z_]+\.go)\b`, comment) {
				require.FileExists(t, filepath.Join(dir, file), "the package comment of %s", dir)
			}
		}
	}
}

func TestEveryKeyIsDescribed(t *testing.T) {
	keys := read(t, "docs/redis-keys.md")
	source := read(t, "internal/queue/keys.go")
	names := submatches(`(?:k\.base|prefix) \+ "([a-z:-]+)"`, source)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Regexp(t, "(?m)^\\| `(<prefix>)?"+name+"(<[a-z]+>)?` \\|", keys, "docs/redis-keys.md lacks a key")
	}
	layout := submatches(`Layout = "(\w+)"`, source)[0]
	require.Contains(t, keys, "This is layout `"+layout+"`")
	require.Contains(t, read(t, "docs/reference.md"), "the same layout, now `"+layout+"`")
}

func TestFormsOfMessagesAreAsDescribed(t *testing.T) {
	keys := read(t, "docs/redis-keys.md")
	_, section, _ := strings.Cut(keys, "\n### BinaryMarshaler\n")
	section, _, _ = strings.Cut(section, "\n### ")
	var described []string
	for _, block := range submatches(`(?m)^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$`, section) {
		described = append(described, strings.Fields(block)...)
	}
	gift := message.NewMessage("1", []byte("not paid"))
	gift.Metadata = message.Metadata{"kind": "gift", "n": ""}
	packed := gift.Copy()
	packed.UUID = "2f8e4a61-94d7-4c52-9b1c-6f0e1d3a5b70"

	want := bytesOf(t, redisdelay.BinaryMarshaler{}, gift)
	want = append(want, bytesOf(t, redisdelay.BinaryMarshaler{}, packed)[1:18]...)
	require.Equal(t, strings.Fields(fmt.Sprintf("% x", want)), described)

	odd := message.NewMessage("\xff", []byte{0xff, 0})
	odd.Metadata = message.Metadata{"k": "\xfe"}
	for _, msg := range []*message.Message{gift, odd} {
		require.Contains(t, keys, "\n    "+string(bytesOf(t, redisdelay.JSONMarshaler{}, msg))+"\n")
	}
	inWords := strings.Trim(strconv.QuoteToASCII(string(bytesOf(t, redisdelay.StreamMarshaler{}, gift))), `"`)
	require.Contains(t, keys, "\n    "+inWords+"\n")
}

func bytesOf(t *testing.T, m redisdelay.Marshaler, msg *message.Message) []byte {
	t.Helper()
	data, err := m.Marshal("", msg)
	require.NoError(t, err)
	return data
}

func TestAccessListHasEveryCommandOfTheScripts(t *testing.T) {
	_, access, _ := strings.Cut(read(t, "docs/redis-keys.md"), "\n## Access\n")
	access, _, _ = strings.Cut(access, "\n## ")
	allowed := submatches(`\+([a-z|@]+)`, access)
	for _, script := range scripts(t) {
		text := read(t, script)
		commands := submatches(`redis\.p?call\('([A-Z]+)'`, text)
		commands = append(commands, submatches(`each\('([A-Z]+)'`, text)...)
		for _, command := range commands {
			allows := func(rule string) bool { rule, _, _ = strings.Cut(rule, "|"); return strings.EqualFold(rule, command) }
			require.True(t, slices.ContainsFunc(allowed, allows), "%s calls %s", script, command)
		}
	}
}

func scripts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("internal/queue/lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	snippets, err := filepath.Glob("internal/queue/lua/*/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, snippets)
	return append(files, snippets...)
}

// documents are all Markdown files.
func documents(t *testing.T) (files []string) {
	walk(t, func(file string) {
		if strings.HasSuffix(file, ".md") {
			files = append(files, file)
		}
	})
	require.NotEmpty(t, files)
	return files
}

// walk visits all files of the module but the hidden ones.
func walk(t *testing.T, visit func(file string)) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case !entry.IsDir():
			visit(file)
		}
		return nil
	}))
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// submatches are what the first group of a pattern matches, wherever it does.
func submatches(pattern, text string) (found []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}
