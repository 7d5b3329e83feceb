package main

import (
	"math"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

// figure is a kind of figure.
type figure int

// The figures of a row, each but the rate for a message.
const (
	rate      figure = iota // messages a second
	allocs                  // of the client
	commands                // that the server ran
	redisTime               // µs in scripts, by INFO commandstats
	redisCPU                // µs of the server's process, by INFO cpu
)

// figures are those that were taken.
type figures map[figure]float64

// row has the figures of one run of something.
type row struct {
	name    string
	figures figures
}

// side is one side of a pair: a job that a tree has run.
type side struct {
	rows  []row
	state machine.State
}

// Sides of a pair.
const (
	oldSide = 0
	newSide = 1
)

// order returns which side runs first in a round: the old one, then the new one, in turn.
func order(round int) [2]int {
	if round%2 == 0 {
		return [2]int{oldSide, newSide}
	}
	return [2]int{newSide, oldSide}
}

// pace ends the rounds when there are enough, or when another one would take too long.
type pace struct {
	rounds int
	limit  time.Duration
	began  time.Time
	done   int
}

// next returns whether another round begins. There is one at least.
func (p *pace) next(now time.Time) bool {
	if p.done == 0 {
		return p.rounds > 0
	}
	spent := now.Sub(p.began)
	return p.done < p.rounds && spent+spent/time.Duration(p.done) <= p.limit
}

// over returns whether the time is over, so that nothing is measured again.
func (p *pace) over(now time.Time) bool { return now.Sub(p.began) > p.limit }

// pair has the figures of both sides, of one round.
type pair [2]figures

// result is all that was found about one row.
type result struct {
	name  string
	pairs []pair
	sides int // that were measured
	moved int // of these, so many have a mark: the machine moved in each try
}

// results are those of all rows, in order.
type results struct{ list []*result }

// add enters the two sides of a pair. A row that only one side has has no ratio.
func (r *results) add(before, after side) {
	names := make([]string, 0, len(after.rows))
	sides := map[string]*pair{}
	for which, s := range []side{before, after} {
		for _, row := range s.rows {
			if sides[row.name] == nil {
				sides[row.name] = &pair{}
				names = append(names, row.name)
			}
			sides[row.name][which] = row.figures
		}
	}
	for _, name := range names {
		i := slices.IndexFunc(r.list, func(found *result) bool { return found.name == name })
		if i < 0 {
			i = len(r.list)
			r.list = append(r.list, &result{name: name})
		}
		found := r.list[i]
		found.pairs = append(found.pairs, *sides[name])
		for _, s := range []side{before, after} {
			found.sides++
			if s.state.Moved() {
				found.moved++
			}
		}
	}
}

// median returns the median figure of one side, or NaN if it has none.
func (r *result) median(which int, f figure) float64 {
	var values []float64
	for _, p := range r.pairs {
		if value, ok := p[which][f]; ok {
			values = append(values, value)
		}
	}
	return median(values)
}

// speed returns the ratio of the medians of the rates, new to old. So more than 1 is faster.
func (r *result) speed() float64 { return r.median(newSide, rate) / r.median(oldSide, rate) }

// spread returns the lowest and the highest ratio of the rates in one pair.
func (r *result) spread() (lowest, highest float64) {
	lowest, highest = math.NaN(), math.NaN()
	for _, p := range r.pairs {
		before, had := p[oldSide][rate]
		after, has := p[newSide][rate]
		if ratio := after / before; had && has {
			lowest, highest = lower(lowest, ratio), -lower(-highest, -ratio)
		}
	}
	return lowest, highest
}

// lower returns the lower of two numbers, of which the first may be NaN.
func lower(a, b float64) float64 {
	if math.IsNaN(a) {
		return b
	}
	return min(a, b)
}

// median returns the middle of values, or the mean of the two in the middle. Of none it is NaN.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
