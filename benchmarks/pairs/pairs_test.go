package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/internal/redisserver"
	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestMedians(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		given := slices.Clone(c.values)
		if got := median(c.values); !near(got, c.want) {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(c.values, given) {
			t.Errorf("median changed %v to %v", given, c.values)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

// sideOf is a side with one row of this rate.
func sideOf(messages float64, state machine.State) side {
	return side{rows: []row{{name: "life", figures: figures{rate: messages, commands: messages / 1000}}}, state: state}
}

var (
	steady = machine.State{Before: 100, After: 100, Tries: 1}
	moved  = machine.State{Before: 100, After: 150, Tries: 3}
)

func TestTheRatioIsThatOfTheMediansAndMoreThanOneIsFaster(t *testing.T) {
	t.Parallel()
	var r results
	r.add(sideOf(100, steady), sideOf(200, steady)) // 2
	r.add(sideOf(400, steady), sideOf(300, moved))  // 0.75
	r.add(sideOf(300, steady), sideOf(330, steady)) // 1.1
	found := r.list[0]
	if got := found.speed(); !near(got, 1) { // 300 and 300
		t.Errorf("the ratio of the medians is %v, want 1", got)
	}
	if lowest, highest := found.spread(); !near(lowest, 0.75) || !near(highest, 2) {
		t.Errorf("the spread is %v to %v, want 0.75 to 2", lowest, highest)
	}
	if got := found.median(newSide, commands); !near(got, 0.3) {
		t.Errorf("the median of commands is %v, want 0.3", got)
	}
	if found.moved != 1 || found.sides != 6 {
		t.Errorf("%d of %d sides are marked, want 1 of 6", found.moved, found.sides)
	}
	text := (&report{results: r}).markdown()
	if want := "| life | 300 | 300 | 1.000 | 0.75 to 2.00 |  | 0.300, 0.300 |  |  | 1 of 6 |\n"; !strings.Contains(text, want) {
		t.Errorf("the table lacks %q:\n%s", want, text)
	}
}

func TestARowThatTheBaseLacksHasNoRatio(t *testing.T) {
	t.Parallel()
	var r results
	r.add(side{state: steady}, sideOf(200, steady))
	if found := r.list[0]; !math.IsNaN(found.speed()) || !near(found.median(newSide, rate), 200) {
		t.Errorf("the ratio is %v, of %v", found.speed(), found.median(newSide, rate))
	}
	if text := (&report{results: r}).markdown(); !strings.Contains(text, "| life | – | 200 | – |") {
		t.Errorf("the table is\n%s", text)
	}
}

func TestSidesRunFirstInTurn(t *testing.T) {
	t.Parallel()
	for round, want := range [][2]int{{oldSide, newSide}, {newSide, oldSide}, {oldSide, newSide}} {
		if got := order(round); got != want {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
}

func TestNoRoundBeginsThatWouldEndTooLate(t *testing.T) {
	t.Parallel()
	began := time.Unix(0, 0)
	p := pace{rounds: 3, limit: 10 * time.Minute, began: began}
	at := func(d time.Duration) bool { return p.next(began.Add(d)) }
	if !at(time.Hour) {
		t.Error("there is no round at all")
	}
	if p.done = 1; !at(5*time.Minute) || at(6*time.Minute) {
		t.Error("after 5 minutes a second round ends in time, after 6 it does not")
	}
	if p.done = 2; !at(6*time.Minute) || at(7*time.Minute) {
		t.Error("after 6 minutes a third round ends in time, after 7 it does not")
	}
	if p.done = 3; at(0) {
		t.Error("there are more rounds than three")
	}
	if p.over(began.Add(10*time.Minute)) || !p.over(began.Add(11*time.Minute)) {
		t.Error("the time is over after 10 minutes")
	}
}

func TestFiguresOfABenchmarkAreRead(t *testing.T) {
	t.Parallel()
	j := benchmark("Publish/now/batch=1", 1000)
	rows, err := j.parse("goos: linux\nBenchmarkPublish/now/batch=100-2 \t 1 \t 1 ns/op\n" +
		"BenchmarkPublish/now/batch=1-2 \t 1000\t 50000 ns/op\t 14.00 redis-commands/op\t 24.5 redis-us/op\t 900 B/op\t 12 allocs/op\nPASS\n")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if want := (figures{rate: 20000, redisCPU: 24.5, allocs: 12}); !maps.Equal(rows[0].figures, want) {
		t.Errorf("%v, want %v", rows[0].figures, want)
	}
	if rows, err := j.parse("PASS\n"); err != nil || rows != nil {
		t.Errorf("a benchmark that the tree lacks has figures: %v, %v", rows, err)
	}
}

func TestFiguresOfEachScriptAreRead(t *testing.T) {
	t.Parallel()
	rows, err := scripts("batch=16", 1, 16).parse("BenchmarkScripts/batch=16-2 \t 200\t 0.5000 ack-us/msg\t 2.000 publish-us/msg\t 0 B/op\t 0 allocs/op\n")
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v, %v", rows, err)
	}
	if len(rows[0].figures) != 0 {
		t.Errorf("the process has %v, although a benchmark without time measures no allocations of messages", rows[0].figures)
	}
	if publish := rows[1]; publish.name != "Scripts/batch=16: publish" || !near(publish.figures[rate], 500_000) || !near(publish.figures[redisTime], 2) {
		t.Errorf("publish is %v", publish)
	}
}

// The pattern of one benchmark does not match those whose names continue it.
func TestEachBenchmarkRunsByItself(t *testing.T) {
	t.Parallel()
	args := strings.Join(scripts("batch=100", 7, 100).args(false), " ")
	for _, want := range []string{"-test.bench ^BenchmarkScripts$/^batch=100$ ", "-test.skip ^BenchmarkScripts$/^batch=100$/. ", "-test.benchtime 7x"} {
		if !strings.Contains(args, want) {
			t.Errorf("%q lacks %q", args, want)
		}
	}
	if chosen := choose(jobs, regexp.MustCompile("^life$")); len(chosen) != 1 || chosen[0].bin != lifeBin {
		t.Errorf("life is %v", chosen)
	}
}

// The benchmarks of jobs are there, so that none is left out in silence.
func TestTheBenchmarksThatAreComparedExist(t *testing.T) {
	t.Parallel()
	for _, j := range jobs {
		if j.bin == lifeBin {
			continue
		}
		name, _, _ := strings.Cut(j.name, "/")
		text, err := os.ReadFile(fmt.Sprintf("../../%s/bench_test.go", j.pkg))
		if err != nil || !strings.Contains(string(text), "\nfunc Benchmark"+name+"(") {
			t.Errorf("%s has no Benchmark%s: %v", j.pkg, name, err)
		}
	}
}

func TestTheTimeOfScriptsCountsOnce(t *testing.T) {
	t.Parallel()
	s := total(map[string]redisserver.Calls{"evalsha": {N: 10, Micros: 500}, "hset": {N: 20, Micros: 100}, "info": {N: 4, Micros: 900}})
	f := figures{}
	s.minus(statistics{commands: 10, micros: 100}).enter(f, 10)
	if want := (figures{commands: 2, redisTime: 40}); !maps.Equal(f, want) {
		t.Errorf("%v, want %v", f, want)
	}
}
