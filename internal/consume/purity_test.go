package consume

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pure are the files of the machine. The others are the shell's, or tests.
var pure = []string{
	"answer.go", "clock.go", "dates.go", "effects.go", "held.go", "lane.go", "leases.go", "machine.go", "places.go", "plan.go", "settlements.go", "supply.go", "suspect.go", "taker.go",
}

var shellFiles = []string{"budget.go", "closing.go", "delivery.go", "doc.go", "exchange.go", "handout.go", "registered.go", "settle.go", "sign.go", "subscription.go"}

// timeNames are what the machine may use of package time: no clock, timer or sleep.
var timeNames = []string{"Time", "Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

func TestTheMachineIsPure(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		name := e.Name()
		switch {
		case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"), slices.Contains(shellFiles, name):
		case slices.Contains(pure, name):
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Empty(t, impurities(t, name, string(source)))
		default:
			t.Errorf("%s is neither the machine's nor the shell's", name)
		}
	}
}

func TestImpuritiesAreFound(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		`import "sync"`: "import", `import "math/rand/v2"`: "import", `import t "time"; var _ t.Time`: "import",
		`var _ chan int`: "channel", `func f() { go f() }`: "go", `func f() { select {} }`: "select",
		`import "time"; var _ = time.Now()`: "time.Now", `import "time"; var _ = time.Since`: "time.Since",
		`import "time"; func f() { time.Sleep(1) }`: "time.Sleep", `import "time"; var _ *time.Timer`: "time.Timer",
		`import "time"; var _ = time.Until(time.Time{})`: "time.Until", `var now = 1`: "variable",
		`import "time"; const x = time.Second; var _ time.Duration`: "",
	} {
		require.Equal(t, want, strings.Join(impurities(t, "x.go", "package x;"+code), " "), code)
	}
}

// impurities returns what of a file a pure machine may not have.
func impurities(t *testing.T, name, source string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
	require.NoError(t, err)
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		if i.Name != nil || !slices.Contains([]string{"cmp", "math", "slices", "time"}, path) && !strings.HasSuffix(path, "/internal/queue") {
			all = append(all, "import")
		}
	}
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR && !strings.Contains(source, "var _ ") {
			all = append(all, "variable")
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			all = append(all, "go")
		case *ast.SelectStmt:
			all = append(all, "select")
		case *ast.ChanType, *ast.SendStmt:
			all = append(all, "channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains(timeNames, n.Sel.Name) {
				all = append(all, "time."+n.Sel.Name)
			}
		}
		return true
	})
	return all
}
