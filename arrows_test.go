package redisdelay_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/redisdelay/watermill-redisdelay"

// mayImport names, for each package of the module, the packages of the module that it may import.
// A package is named by its directory; "." is the root. Arrows run down: a package may import only
// packages that stand above it in this list.
var mayImport = []struct {
	pkg     string
	imports []string
}{
	{"delayqueue", nil},
	{"internal/guard", nil},
	{"internal/calendar", nil},
	{"internal/field", nil},
	{"internal/jsontext", nil},
	{"internal/texts", nil},
	{"internal/when", nil},
	{"internal/refusal", nil},
	{"internal/servers", []string{"internal/guard", "internal/refusal"}},
	{"internal/queue", []string{"internal/servers", "internal/refusal"}},
	{"internal/queue/lua", []string{"internal/queue"}}, // the program of make lua
	{"internal/rights", []string{"internal/queue", "internal/servers", "internal/refusal"}},
	{"internal/meta", []string{"internal/queue"}},
	{"internal/partitions", []string{"internal/queue"}},
	{"internal/wake", []string{"internal/queue", "internal/servers", "internal/refusal"}},
	{"internal/operate", []string{"internal/texts", "internal/queue", "internal/rights", "internal/servers", "internal/refusal"}},
	{"internal/publish", []string{"internal/queue", "internal/rights", "internal/guard"}},
	{"internal/consume", []string{"internal/queue", "internal/servers", "internal/meta", "internal/wake", "internal/guard"}},
	{"internal/inside", []string{"internal/queue", "internal/consume", "internal/wake"}},
	{"scheduler", []string{"delayqueue", "internal/queue", "internal/rights", "internal/servers", "internal/refusal", "internal/wake", "internal/guard", "internal/field"}},
	{".", []string{"scheduler", "internal/publish", "internal/consume", "internal/meta", "internal/wake", "internal/queue", "internal/rights",
		"internal/servers", "internal/refusal", "internal/guard", "internal/inside", "internal/field"}},
	{"periodic", []string{".", "internal/calendar", "internal/consume", "internal/queue", "internal/rights", "internal/servers", "internal/wake", "internal/guard",
		"internal/inside", "internal/field"}},
	{"partition", []string{".", "internal/consume", "internal/queue", "internal/partitions", "internal/guard", "internal/inside", "internal/field"}},
	{"relay", []string{".", "delayqueue", "internal/consume", "internal/wake", "internal/queue", "internal/servers", "internal/guard", "internal/field"}},
	{"admin", []string{".", "partition", "internal/calendar", "internal/jsontext", "internal/texts", "internal/operate", "internal/partitions", "internal/wake", "internal/queue",
		"internal/rights", "internal/servers", "internal/refusal", "internal/field"}},
	{"redisdelaytest", []string{".", "admin", "internal/queue", "internal/servers", "internal/wake", "internal/field"}},
	{"dashboard", []string{"admin", "periodic", "internal/texts", "internal/when", "internal/field"}},
	{"internal/demo", []string{".", "admin", "periodic"}},
}

// knowNoTopic are the files of package wake that have its connections. They need no pipeline.
var knowNoTopic = []string{"internal/wake/line.go", "internal/wake/listener.go"}

// forTests are the directories of packages that only tests and runners of benchmarks import. They
// may import every package. Others may not import one of internal/test, as mayImport has none.
var forTests = []string{"internal/test", "tests", "examples/internal/exampletest"}

// wrongArrow tells why a package may not import another one of the module, or returns "".
func wrongArrow(from, to string) string {
	for _, dir := range forTests {
		if from == dir || strings.HasPrefix(from, dir+"/") {
			return ""
		}
	}
	if strings.HasPrefix(from, "examples/") {
		if strings.HasPrefix(to, "internal/") {
			return "an example uses what a user has"
		}
		return ""
	}
	for _, rule := range mayImport {
		if rule.pkg == from {
			if slices.Contains(rule.imports, to) {
				return ""
			}
			return "it may import only " + strings.Join(rule.imports, ", ")
		}
	}
	return "it is not in the table mayImport"
}

// TestImportsRunDown walks the files of the module that are no tests.
func TestImportsRunDown(t *testing.T) {
	t.Parallel()
	seen := map[string]int{} // imports of each package
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			_, err := os.Stat(filepath.Join(file, "go.mod"))
			if name := entry.Name(); file != "." && (err == nil || name == "testdata" || name[0] == '.' || name[0] == '_') {
				return filepath.SkipDir // of another module, or no package
			}
			return nil
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		from := path.Dir(filepath.ToSlash(file))
		for _, spec := range parsed.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if to != module && !strings.HasPrefix(to, module+"/") {
				continue
			}
			to = path.Clean("." + strings.TrimPrefix(to, module))
			seen[from]++
			if to == "internal/queue" && slices.Contains(knowNoTopic, filepath.ToSlash(file)) {
				t.Errorf("%s imports the pipeline, which connections do without", file)
			}
			if why := wrongArrow(from, to); why != "" {
				t.Errorf("%s: %s imports %s: %s", file, from, to, why)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for _, file := range knowNoTopic {
		require.FileExists(t, file)
	}
	for _, pkg := range []string{".", "scheduler", "relay", "admin", "internal/servers", "internal/rights", "internal/wake", "internal/operate"} {
		require.NotZero(t, seen[pkg], "the walk has not seen package %s", pkg)
	}
}

func TestTheTableOfImportsRunsDown(t *testing.T) {
	t.Parallel()
	above := map[string]bool{}
	for _, rule := range mayImport {
		for _, to := range rule.imports {
			require.True(t, above[to], "%s may import %s, which does not stand above it", rule.pkg, to)
		}
		above[rule.pkg] = true
	}
	for _, arrow := range []struct{ from, to string }{
		{"internal/servers", "internal/queue"}, {"internal/refusal", "internal/queue"}, {"internal/servers", "internal/rights"},
		{"internal/refusal", "internal/servers"}, {"internal/queue", "internal/rights"}, {"internal/wake", "internal/rights"},
		{"internal/queue", "internal/wake"}, {"internal/queue", "internal/operate"}, {"internal/queue", "internal/meta"},
		{"internal/wake", "internal/meta"}, {"internal/publish", "internal/consume"}, {"internal/consume", "internal/publish"},
		{"internal/publish", "."}, {"internal/consume", "."}, {".", "admin"}, {"scheduler", "."}, {".", "relay"},
		{".", "internal/operate"}, {"scheduler", "internal/operate"}, {"relay", "internal/operate"}, {"redisdelaytest", "internal/operate"},
		{".", "internal/test/redistest"}, {"internal/queue", "internal/test/testkit"}, {"admin", "internal/test/queuetest"},
		{"examples/quickstart", "internal/queue"}, {"new", "internal/queue"},
	} {
		require.NotEmpty(t, wrongArrow(arrow.from, arrow.to), "%s may import %s", arrow.from, arrow.to)
	}
}
