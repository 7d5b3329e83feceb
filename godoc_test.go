package redisdelay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// function is an exported function or method of an exported type.
type function struct {
	name    string // with the type
	comment string
	returns bool // an error is its last result
	topic   bool // it has a parameter topic
}

// declared are the exported sentinel errors and functions of a package.
func declared(t *testing.T, dir string) (sentinels []string, functions []function) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if values, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range values.Names {
							if regexp.MustCompile(`^Err[A-Z]`).MatchString(name.Name) {
								sentinels = append(sentinels, name.Name)
							}
						}
					}
				}
			case *ast.FuncDecl:
				if f, exported := describe(d); exported {
					functions = append(functions, f)
				}
			}
		}
	}
	return sentinels, functions
}

func describe(d *ast.FuncDecl) (f function, exported bool) {
	f = function{name: d.Name.Name, comment: d.Doc.Text()}
	exported = d.Name.IsExported()
	if d.Recv != nil {
		receiver := regexp.MustCompile(`[A-Za-z]\w*`).FindString(typeName(d.Recv.List[0].Type))
		f.name = receiver + "." + f.name
		exported = exported && ast.IsExported(receiver)
	}
	if results := d.Type.Results; results != nil {
		f.returns = typeName(results.List[len(results.List)-1].Type) == "error"
	}
	for _, param := range d.Type.Params.List {
		for _, name := range param.Names {
			f.topic = f.topic || name.Name == "topic"
		}
	}
	return f, exported
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	}
	return ""
}

func (f function) names(err string) bool {
	return regexp.MustCompile(`\b` + err + `\b`).MatchString(f.comment)
}

// Somebody who looks for an error finds the functions that return it, and the other way round.
func TestDocCommentsNameTheErrors(t *testing.T) {
	for _, dir := range []string{".", "admin", "dashboard", "delayqueue", "partition", "periodic", "relay", "scheduler"} {
		sentinels, functions := declared(t, dir)
		require.NotEmpty(t, functions, dir)
		returning := functions
		if dir == "." { // it exports errors that others of its packages return, too
			for _, other := range []string{"scheduler", "periodic"} {
				_, of := declared(t, other)
				returning = slices.Concat(returning, of)
			}
		}
		if dir != "partition" { // it returns the errors of the root
			require.NotEmpty(t, sentinels, dir)
		}
		for _, err := range sentinels {
			inPackage := dir == "admin" && strings.Contains(read(t, "admin/doc.go"), "["+err+"]")
			assert.True(t, inPackage || slices.ContainsFunc(returning, func(f function) bool { return f.names(err) }),
				"neither the package comment nor a function of %s names %s", dir, err)
		}
		for _, f := range functions {
			if !f.returns || strings.HasSuffix(f.name, ".MarshalJSON") || strings.HasSuffix(f.name, ".Unwrap") {
				continue
			}
			if dir == "admin" && f.topic {
				continue // the package comment names the errors that all have
			}
			assert.Regexp(t, `\b([Ee]rrors?|Err[A-Z]\w+|nil)\b`, f.comment, "%s: the comment of %s says nothing of its error", dir, f.name)
			if slices.Contains(sentinels, "ErrInvalidConfig") && strings.HasSuffix(f.name, ".Validate") {
				assert.True(t, f.names("ErrInvalidConfig"), "%s: %s", dir, f.name)
			}
		}
	}
}

// The errors that all operations return are named once.
func TestPackageCommentOfAdminNamesTheErrorsOfAllOperations(t *testing.T) {
	_, errors, found := strings.Cut(read(t, "admin/doc.go"), "\n// # Errors\n")
	require.True(t, found)
	for _, err := range []string{"ErrInvalidTopic", "ErrForbidden", "ErrLayout", "ErrNotFound", "ErrServerFull"} {
		require.Contains(t, errors, "["+err+"]")
	}
}

// The package page fits on a screen, and begins with an example.
func TestPackagePageIsShort(t *testing.T) {
	page := read(t, "doc.go")
	require.LessOrEqual(t, strings.Count(page, "\n"), 60, "what is longer goes to docs/semantics.md, or to what it describes")
	require.Regexp(t, `\A// Package redisdelay [^\n]*:\n//\n//\t`, page)
}

// Each of these things has an Example at the function, type or package that does it.
func TestWhatPeopleDoIsShown(t *testing.T) {
	for file, examples := range map[string][]string{
		"example_test.go":          {"Publisher", "DelayFor", "DelayUntil", "Subscriber_nackWithDelay"},
		"example_control_test.go":  {"SetDelayID_replace", "PostponeOnError"},
		"example_consume_test.go":  {"Postpone", "SubscriberConfig_consumerGroup", "SubscriberConfig_broadcast", "Subscriber_router", "Subscriber_Close"},
		"admin/example_test.go":    {"Admin_Cancel", "Admin_Reschedule", "Admin_Requeue", "Admin_RequeueAll"},
		"periodic/example_test.go": {""}, "relay/example_test.go": {""},
	} {
		text := read(t, file)
		for _, name := range examples {
			_, example, found := strings.Cut(text, "\nfunc Example"+name+"() {\n")
			require.True(t, found, "%s: Example%s", file, name)
			example, _, _ = strings.Cut(example, "\n}\n")
			require.Contains(t, example, "// Output:", "%s: Example%s", file, name)
		}
	}
}
