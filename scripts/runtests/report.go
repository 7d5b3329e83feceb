package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is a line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what does not build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// report prints what becomes of packages. Several goroutines may use it.
type report struct {
	mu       sync.Mutex
	out      io.Writer
	now      func() time.Time
	began    time.Time
	said     time.Time // when something was printed last
	building int       // packages compiled so far
	running  map[string]*pkg
	passed   int
	failures []string
	tests    []timed
}

// pkg is a package whose tests run.
type pkg struct {
	began   time.Time
	outputs map[string]*bytes.Buffer // of tests that have not passed; "" is the package itself
	order   []string                 // of the tests in outputs
	parents map[string]bool          // tests that have subtests
	tests   []timed
}

// timed is a test without subtests.
type timed struct {
	pkg, test string
	took      time.Duration
}

func newReport(out io.Writer, now func() time.Time) *report {
	return &report{out: out, now: now, began: now(), said: now(), running: map[string]*pkg{}}
}

// say prints a line. r.mu is held.
func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.out, format+"\n", args...)
	r.said = r.now()
}

// since returns a time span, in whole seconds.
func (r *report) since(at time.Time) time.Duration { return r.now().Sub(at).Round(time.Second) }

// compiles counts a package that is compiled, and prints a line every ten seconds.
func (r *report) compiles() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.building++
	if r.building == 1 || r.now().Sub(r.said) >= 10*time.Second {
		r.say("compiling: %d packages so far, %v", r.building, r.since(r.began))
	}
}

// compiled prints that all packages of a module are compiled, if any were.
func (r *report) compiled(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.building > 0 {
		r.say("compiled what %s needs, %v", dir, r.since(r.began))
	}
}

// failed prints and counts a failure that is not of a package.
func (r *report) failed(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, why)
	r.say("FAIL  %s", why)
}

// beat prints what runs, whenever nothing was printed for a while, until it is stopped.
func (r *report) beat(after time.Duration) (stop func()) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Second):
				r.still(after)
			}
		}
	})
	return func() { close(ended); wg.Wait() }
}

// still prints what runs, if nothing was printed for a while.
func (r *report) still(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now().Sub(r.said) < after {
		return
	}
	var runs []string
	for _, name := range slices.Sorted(maps.Keys(r.running)) {
		runs = append(runs, fmt.Sprintf("%s for %v", name, r.since(r.running[name].began)))
	}
	r.say("still: %s", cmp.Or(strings.Join(runs, ", "), "compiling"))
}

// read reads the output of a go test -json, and returns how many failures it had.
func (r *report) read(from io.Reader) (failures int, err error) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 && r.take(line) {
			failures++
		}
		if err == io.EOF {
			return failures, nil
		}
		if err != nil {
			return failures, err
		}
	}
}

// take takes a line, and returns whether it is a failure of a package.
func (r *report) take(line []byte) (failure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if json.Unmarshal(line, &e) != nil { // what go test itself says
		r.say("%s", bytes.TrimRight(line, "\n"))
		return false
	}
	switch e.Action {
	case "build-output":
		r.say("%s", strings.TrimRight(e.Output, "\n"))
		return false
	case "build-fail": // an event of the package follows
		return false
	}
	p := r.running[e.Package]
	if p == nil {
		p = &pkg{began: r.now(), outputs: map[string]*bytes.Buffer{}, parents: map[string]bool{}}
		r.running[e.Package] = p
	}
	switch {
	case e.Action == "output":
		p.output(e)
	case e.Test != "":
		p.ended(e)
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		delete(r.running, e.Package)
		return r.ended(e, p)
	}
	return false
}

// output keeps what a test printed.
func (p *pkg) output(e event) {
	if p.outputs[e.Test] == nil {
		p.outputs[e.Test] = &bytes.Buffer{}
		p.order = append(p.order, e.Test)
	}
	p.outputs[e.Test].WriteString(e.Output)
}

// ended notes the end of a test, and forgets what it printed if it did not fail.
func (p *pkg) ended(e event) {
	if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
		p.parents[e.Test[:i]] = true
	}
	if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
		return
	}
	p.tests = append(p.tests, timed{e.Package, e.Test, time.Duration(e.Elapsed * float64(time.Second))})
	if e.Action != "fail" {
		delete(p.outputs, e.Test)
	}
}

// ended prints a package that has ended, and returns whether it failed. r.mu is held.
func (r *report) ended(e event, p *pkg) (failure bool) {
	for _, t := range p.tests {
		if !p.parents[t.test] {
			r.tests = append(r.tests, t)
		}
	}
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
	switch e.Action {
	case "skip": // it has no tests
	case "pass":
		r.passed++
		r.say("ok    %s  %v", e.Package, took)
	default:
		r.failures = append(r.failures, e.Package)
		for _, test := range p.order { // a test that did not end at all has no event, and is here too
			if text := p.outputs[test]; text != nil {
				r.say("%s", strings.TrimRight(text.String(), "\n"))
			}
		}
		r.say("FAIL  %s  %v", e.Package, took)
		return true
	}
	return false
}

// end prints the slowest tests and a summary, and returns whether all is well.
func (r *report) end(slowest int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.tests, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range r.tests[:min(slowest, len(r.tests))] {
		r.say("slow  %6.2fs  %s  %s", t.took.Seconds(), t.pkg, t.test)
	}
	if len(r.failures) > 0 {
		r.say("FAILED after %v: %s", r.since(r.began), strings.Join(r.failures, ", "))
		return false
	}
	r.say("%d packages, all well, in %v", r.passed, r.since(r.began))
	return true
}
