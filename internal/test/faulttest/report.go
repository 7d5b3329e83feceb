package faulttest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// reportVariable names the file to which each case adds a row of a table.
const reportVariable = "FAULTS_REPORT"

var cases = struct {
	sync.Mutex
	figures map[string][]string // by test name
}{figures: map[string][]string{}}

// Case sets what a test must show. When the test ends, the report gets this text, the verdict and
// the figures.
func Case(t testing.TB, shows string) {
	t.Helper()
	t.Cleanup(func() {
		verdict := "shown"
		if t.Failed() {
			verdict = "NOT SHOWN"
		} else if t.Skipped() {
			verdict = "left out"
		}
		cases.Lock()
		defer cases.Unlock()
		row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", t.Name(), shows, verdict, strings.Join(cases.figures[t.Name()], "; "))
		name := os.Getenv(reportVariable)
		if name == "" {
			return
		}
		file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		if _, err := file.WriteString(row); err != nil {
			t.Error(err)
		}
	})
}

// Report adds figures to the test's row in the report.
func Report(t testing.TB, figures string) {
	t.Helper()
	t.Log(figures)
	cases.Lock()
	defer cases.Unlock()
	cases.figures[t.Name()] = append(cases.figures[t.Name()], figures)
}

// Long returns whether the tests run in the long form.
func Long() bool { return os.Getenv("FAULTS_LONG") != "" }

// Pick returns short or long, according to the form.
func Pick[T any](short, long T) T {
	if Long() {
		return long
	}
	return short
}
