package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
)

// env is what all scenarios run in.
type env struct {
	server *server
	smoke  bool
	rounds int
	trials *regexp.Regexp // those to run, by their keys
	sent   atomic.Int64   // commands that clients sent so far
	topics int            // that were named so far
}

// size is a number of messages or the like, or with -smoke a small one.
func (e *env) size(n int) int {
	if e.smoke {
		return min(n, max(n/200, 100))
	}
	return n
}

// topic is the name of a topic that was not used yet.
func (e *env) topic() string {
	e.topics++
	return fmt.Sprintf("bench%d", e.topics)
}

// scenario is something to measure, the same with several systems or in several ways.
type scenario struct {
	name   string // what -run chooses by
	title  string
	about  string // what is done, for the report
	trials []trial

	// once tells that a single round is enough, because the trials are long, or take many samples.
	once bool

	// targets says what was aimed at, and what came out.
	targets func(r results) []target
}

// trial is one row of a scenario: what one system does, in one way. run is one round of it.
type trial struct {
	system string
	what   string
	run    func(e *env) (figures, error)
}

// key names a trial among those of its scenario.
func (t trial) key() string { return t.system + ": " + t.what }

// figures are what was measured, by column.
type figures map[column]float64

// results are the figures of all rounds, by the keys of the trials.
type results map[string][]figures

// get is the figure that counts, or NaN if it was not measured.
func (r results) get(t trial, c column) float64 {
	if f, ok := r.summary(t)[c]; ok {
		return f
	}
	return math.NaN()
}

// summary has the figures of a trial that count: of what says how bad it was at worst, the worst of
// all rounds, and the median of all else.
func (r results) summary(t trial) figures {
	s := figures{}
	for _, c := range columns {
		var values []float64
		for _, round := range r[t.key()] {
			if value, ok := round[c]; ok {
				values = append(values, value)
			}
		}
		if len(values) == 0 {
			continue
		}
		slices.Sort(values)
		switch n := len(values); c {
		case lateMin:
			s[c] = values[0]
		case lateMax, firstLate, earlyCount, slowScripts, slowest, stolen, longestPause:
			s[c] = values[n-1]
		default:
			s[c] = (values[(n-1)/2] + values[n/2]) / 2
		}
	}
	return s
}

// run runs all trials once, then all again, and so on, so that a noisy minute of the machine hits
// them all. Each begins with an empty server.
func (s scenario) run(e *env) (results, error) {
	rounds := e.rounds
	if s.once {
		rounds = 1
	}
	all := results{}
	for round := range rounds {
		for _, t := range s.trials {
			if !e.trials.MatchString(t.key()) {
				continue
			}
			if err := e.server.Admin.FlushAll(ctx).Err(); err != nil {
				return nil, err
			}
			found, err := t.run(e)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.key(), err)
			}
			fmt.Fprintf(os.Stderr, "%s %d/%d  %s  %s\n", s.name, round+1, rounds, t.key(), found)
			all[t.key()] = append(all[t.key()], found)
			if len(all[t.key()]) > round+1 {
				return nil, fmt.Errorf("%s: two rows have this name", t.key())
			}
		}
	}
	return all, nil
}

func (f figures) String() string {
	var text []string
	for _, c := range columns {
		if value, ok := f[c]; ok {
			text = append(text, fmt.Sprintf("%s %s", c, number(value)))
		}
	}
	return strings.Join(text, ", ")
}

// target is a figure that is aimed at.
type target struct {
	what   string
	short  string // its row in the README, which has the ten that matter most; "": none
	least  bool   // limit is the least that is wanted, else the most
	limit  float64
	figure float64
}

func atLeast(limit float64, what string, figure float64) target {
	return target{what: what, least: true, limit: limit, figure: figure}
}

func atMost(limit float64, what string, figure float64) target {
	return target{what: what, limit: limit, figure: figure}
}

// inREADME gives the target a row in the README, with this text.
func (t target) inREADME(short string) target {
	t.short = short
	return t
}

// verdict is "met" or "missed", or "-" if the figure was not measured.
func (t target) verdict() string {
	switch {
	case math.IsNaN(t.figure):
		return "-"
	case t.least == (t.figure > t.limit), t.figure == t.limit:
		return "met"
	}
	return "missed"
}
