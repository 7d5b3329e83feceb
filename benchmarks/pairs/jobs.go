package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// job is a measurement, which is one process.
type job struct {
	name string
	bin  string // program of the tree that has it
	pkg  string // directory of the benchmark, in which its process runs

	n, smoke int // messages or iterations

	// per is how many messages an iteration has; 0: it is life, whose phases report by themselves.
	per int
}

// jobs are all measurements, in the order in which they run and are reported. The sizes let each
// process run for a second or two.
var jobs = []job{
	benchmark("Publish/now/callers", 100_000),
	benchmark("Publish/now/batch=1", 15_000),
	benchmark("Publish/now/batch=100", 150_000),
	benchmark("Publish/delayed/callers", 100_000),
	benchmark("Publish/delayed/batch=1", 15_000),
	benchmark("Publish/delayed/batch=100", 150_000),
	benchmark("Consume/inflight=1", 100_000),
	benchmark("Consume/inflight=16", 100_000),
	benchmark("Consume/inflight=256", 100_000),
	benchmark("Life", 100_000),
	scripts("batch=1", 200, 1),
	scripts("batch=16", 200, 16),
	scripts("batch=100", 100, 100),
	scripts("batch=500", 50, 500),
	scripts("batch=100/dead=100", 100, 100),
	scripts("batch=100/body=32/waiting=300", 100, 100),
	{name: "life", bin: lifeBin, pkg: ".", n: 100_000, smoke: 500},
}

// benchmark is one of the root package, of n messages.
func benchmark(name string, n int) job {
	return job{name: name, bin: rootTests, pkg: ".", n: n, smoke: 100, per: 1}
}

// scripts is one of those that measure each script by itself. In an iteration, size messages are
// due at once, and as many later.
func scripts(name string, n, size int) job {
	return job{name: "Scripts/" + name, bin: queueTests, pkg: "internal/queue", n: n, smoke: 1, per: 2 * size}
}

// choose returns the jobs whose names match.
func choose(all []job, run *regexp.Regexp) (chosen []job) {
	for _, j := range all {
		if run.MatchString(j.name) {
			chosen = append(chosen, j)
		}
	}
	return chosen
}

// size is how many messages or iterations there are.
func (j job) size(smoke bool) int {
	if smoke {
		return j.smoke
	}
	return j.n
}

// args are the arguments of a benchmark's process. Benchmarks whose names continue this one's are
// left out.
func (j job) args(smoke bool) []string {
	elements := strings.Split("Benchmark"+j.name, "/")
	for i, element := range elements {
		elements[i] = "^" + regexp.QuoteMeta(element) + "$"
	}
	pattern := strings.Join(elements, "/")
	return []string{"-test.run", "^$", "-test.bench", pattern, "-test.skip", pattern + "/.", "-test.benchmem",
		"-test.benchtime", strconv.Itoa(j.size(smoke)) + "x"}
}

// parse reads what the process of a benchmark printed. It returns no rows if the tree has no such
// benchmark.
func (j job) parse(printed string) ([]row, error) {
	for line := range strings.Lines(printed) {
		fields := strings.Fields(line)
		if len(fields) < 4 || len(fields)%2 != 0 || withoutProcs(fields[0]) != "Benchmark"+j.name {
			continue
		}
		values := map[string]float64{}
		for i := 2; i < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			values[fields[i+1]] = value
		}
		return j.rows(values), nil
	}
	return nil, nil
}

// withoutProcs returns the name of a benchmark without the number of processors behind it.
func withoutProcs(name string) string {
	return regexp.MustCompile(`-\d+$`).ReplaceAllString(name, "")
}

// rows are the figures that a benchmark reported. The first is that of the whole process.
func (j job) rows(values map[string]float64) []row {
	whole := row{name: j.name, figures: figures{}}
	if ns := values["ns/op"]; ns > 0 {
		whole.figures[rate] = 1e9 / ns
	}
	for unit, f := range map[string]figure{"allocs/op": allocs, "redis-us/op": redisCPU} {
		if value, ok := values[unit]; ok && values["ns/op"] > 0 {
			whole.figures[f] = value
		}
	}
	rows := []row{whole}
	for _, script := range []string{"publish", "publish-delayed", "promote", "claim", "ack"} {
		if micros := values[script+"-us/msg"]; micros > 0 {
			rows = append(rows, row{name: j.name + ": " + script, figures: figures{rate: 1e6 / micros, redisTime: micros}})
		}
	}
	return rows
}
