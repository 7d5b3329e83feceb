package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// told returns what a report prints of lines of go test -json, and whether all is well.
func told(t *testing.T, slowest int, lines ...string) (text string, well bool) {
	t.Helper()
	var out bytes.Buffer
	began := time.Unix(0, 0)
	r := newReport(&out, func() time.Time { return began })
	_, err := r.read(strings.NewReader(strings.Join(lines, "\n")))
	require.NoError(t, err)
	well = r.end(slowest)
	return out.String(), well
}

func TestAPackageIsALine(t *testing.T) {
	t.Parallel()
	text, well := told(t, 0,
		`{"Action":"start","Package":"a"}`,
		`{"Action":"run","Package":"a","Test":"TestX"}`,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestX","Elapsed":0.5}`,
		`{"Action":"output","Package":"a","Output":"PASS\n"}`,
		`{"Action":"pass","Package":"a","Elapsed":1.25}`,
		`{"Action":"start","Package":"b"}`,
		`{"Action":"output","Package":"b","Output":"?   b [no test files]\n"}`,
		`{"Action":"skip","Package":"b","Elapsed":0}`)
	require.True(t, well)
	require.Equal(t, "ok    a  1.3s\n1 packages, all well, in 0s\n", text)
}

func TestWhatFailsIsShownWhole(t *testing.T) {
	t.Parallel()
	text, well := told(t, 0,
		`{"Action":"output","Package":"a","Test":"TestWell","Output":"not this\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestWell","Elapsed":0.5}`,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}`,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:1: one\n"}`,
		`{"Action":"output","Package":"a","Output":"said by the package\n"}`,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:2: two\n"}`,
		`{"Action":"fail","Package":"a","Test":"TestX","Elapsed":0.5}`,
		`{"Action":"output","Package":"a","Test":"TestHangs","Output":"panic: test timed out\n"}`,
		`{"Action":"fail","Package":"a","Elapsed":2}`)
	require.False(t, well)
	require.Equal(t, `=== RUN   TestX
    x_test.go:1: one
    x_test.go:2: two
said by the package
panic: test timed out
FAIL  a  2s
FAILED after 0s: a
`, text)
}

func TestWhatDoesNotBuildIsShown(t *testing.T) {
	t.Parallel()
	text, well := told(t, 0,
		`{"ImportPath":"a","Action":"build-output","Output":"# a\n"}`,
		`{"ImportPath":"a","Action":"build-output","Output":"a.go:1: undefined: x\n"}`,
		`{"ImportPath":"a","Action":"build-fail"}`,
		`{"Action":"start","Package":"a"}`,
		`{"Action":"output","Package":"a","Output":"FAIL\ta [build failed]\n"}`,
		`{"Action":"fail","Package":"a","Elapsed":0,"FailedBuild":"a"}`,
		`no events at all`)
	require.False(t, well)
	require.Equal(t, "# a\na.go:1: undefined: x\nFAIL\ta [build failed]\nFAIL  a  0s\nno events at all\nFAILED after 0s: a\n", text)
}

func TestTheSlowestTestsHaveNoSubtests(t *testing.T) {
	t.Parallel()
	text, _ := told(t, 2,
		`{"Action":"run","Package":"a","Test":"TestX"}`,
		`{"Action":"run","Package":"a","Test":"TestX/one"}`,
		`{"Action":"pass","Package":"a","Test":"TestX/one","Elapsed":3}`,
		`{"Action":"pass","Package":"a","Test":"TestX","Elapsed":9}`,
		`{"Action":"pass","Package":"a","Test":"TestY","Elapsed":1}`,
		`{"Action":"pass","Package":"a","Test":"TestZ","Elapsed":4}`,
		`{"Action":"pass","Package":"a","Elapsed":10}`)
	require.Equal(t, "ok    a  10s\nslow    4.00s  a  TestZ\nslow    3.00s  a  TestX/one\n1 packages, all well, in 0s\n", text)
}

func TestSilenceEndsWithWhatRuns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	r := newReport(&out, func() time.Time { return now })
	r.still(30 * time.Second)
	require.Empty(t, out.String())
	now = now.Add(30 * time.Second)
	r.still(30 * time.Second)
	_, _ = r.read(strings.NewReader(`{"Action":"start","Package":"b"}` + "\n" + `{"Action":"start","Package":"a"}`))
	now = now.Add(time.Minute)
	r.still(30 * time.Second)
	require.Equal(t, "still: compiling\nstill: a for 1m0s, b for 1m0s\n", out.String())
}

func TestArgumentsOfGoBuild(t *testing.T) {
	t.Parallel()
	flags, packages := split(strings.Fields("-race -timeout=20m -tags=stress -parallel=4 ./a ./b"))
	require.Equal(t, []string{"-race", "-tags=stress"}, flags)
	require.Equal(t, []string{"./a", "./b"}, packages)
}
