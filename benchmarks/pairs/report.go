package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"
)

// report is all that was found.
type report struct {
	base, here            string
	began                 time.Time
	took                  time.Duration
	rounds                int
	loadBefore, loadAfter float64
	results               results
}

// markdown is the report as it is printed.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Base: %s. New: %s. Pairs: %d, in %v. %d processors, load average %.1f before and %.1f after.\n\n",
		r.base, r.here, r.rounds, r.took.Round(time.Second), runtime.NumCPU(), r.loadBefore, r.loadAfter)
	b.WriteString("speed: median of new divided by median of base, so more than 1 is faster. Spread: lowest and highest of a pair.\n" +
		"Other figures: base, new, a message. Redis µs: in scripts, by INFO commandstats. Redis CPU µs: by INFO cpu.\n" +
		"Moved: sides of pairs in which the machine changed by more than 10 % in each of three tries.\n\n")
	b.WriteString("| | base/s | new/s | speed | spread | allocations | Redis commands | Redis µs | Redis CPU µs | moved |\n" +
		"|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, found := range r.results.list {
		lowest, highest := found.spread()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", found.name,
			text("%.0f", found.median(oldSide, rate)), text("%.0f", found.median(newSide, rate)),
			text("%.3f", found.speed()), both("%.2f to %.2f", lowest, highest),
			found.both("%.1f, %.1f", allocs), found.both("%.3f, %.3f", commands), found.both("%.2f, %.2f", redisTime),
			found.both("%.2f, %.2f", redisCPU), fmt.Sprintf("%d of %d", found.moved, found.sides))
	}
	return b.String()
}

// both prints the medians of a figure, of base and new.
func (r *result) both(format string, f figure) string {
	return both(format, r.median(oldSide, f), r.median(newSide, f))
}

func both(format string, a, b float64) string {
	if math.IsNaN(a) && math.IsNaN(b) {
		return ""
	}
	return strings.ReplaceAll(fmt.Sprintf(format, a, b), "NaN", "–")
}

// text prints a number, or a dash if there is none.
func text(format string, f float64) string {
	if math.IsNaN(f) {
		return "–"
	}
	return fmt.Sprintf(format, f)
}
