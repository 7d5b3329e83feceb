package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// column is a figure's heading.
type column string

const (
	publishRate    column = "publish/s"
	consumeRate    column = "consume/s"
	lifeRate       column = "lives/s"
	redisCPU       column = "Redis µs"
	clientCPU      column = "client µs"
	commandsSent   column = "commands sent"
	commandsRun    column = "commands run"
	allocations    column = "allocs"
	allocatedBytes column = "alloc bytes"
	heldBytes      column = "bytes held"
	publishMB      column = "publish MB/s"
	consumeMB      column = "consume MB/s"
	publishCopies  column = "publish alloc bytes/byte"
	consumeCopies  column = "consume alloc bytes/byte"
	firstLate      column = "first late ms"
	lateMin        column = "late min ms"
	lateP50        column = "late p50 ms"
	lateP99        column = "late p99 ms"
	lateMax        column = "late max ms"
	earlyCount     column = "early"
	slowScripts    column = "over 10 ms"
	slowest        column = "slowest ms"
	stolen         column = "stolen ms"
	longestPause   column = "longest pause ms"
	pingTime       column = "PING µs"
	memoryRead     column = "read ns"
	sentEach       column = "sent/s each"
	runEach        column = "run/s each"
	connections    column = "connections"
	heapPerTopic   column = "heap bytes/topic"
	redisPerTopic  column = "Redis bytes/topic"
)

// columns are all columns, in the order in which tables have them.
var columns = []column{
	publishRate, consumeRate, lifeRate, redisCPU, clientCPU, commandsSent, commandsRun, allocations, allocatedBytes,
	heldBytes, publishMB, consumeMB, publishCopies, consumeCopies,
	firstLate, lateMin, lateP50, lateP99, lateMax, earlyCount, slowScripts, slowest, pingTime, memoryRead, stolen, longestPause,
	sentEach, runEach, connections, heapPerTopic, redisPerTopic,
}

// report is all that was found.
type report struct {
	heading string
	parts   []part
}

// part is what one scenario found.
type part struct {
	scenario scenario
	results  results
	targets  []target
}

func newReport(e *env) (*report, error) {
	info, err := e.server.Info("server")
	if err != nil {
		return nil, err
	}
	return &report{heading: fmt.Sprintf("Redis %s, without persistence, on the same machine; %d CPUs; %s %s/%s; "+
		"%s; medians of %d %s, and for maxima the worst round.", info["redis_version"], runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		time.Now().UTC().Format(time.DateOnly), e.rounds, plural(e.rounds, "round"))}, nil
}

func (r *report) add(s scenario, found results) {
	r.parts = append(r.parts, part{s, found, s.targets(found)})
}

// print writes the whole report as Markdown, which is what people read in a terminal too.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.heading)
	r.printTargets(w, func(t target) string { return t.what })
	for _, p := range r.parts {
		fmt.Fprintf(w, "\n## %s\n\n%s", p.scenario.title, p.scenario.about)
		if p.scenario.once {
			fmt.Fprint(w, " One round.")
		}
		fmt.Fprint(w, "\n\n")
		p.printFigures(w)
	}
}

// printTargets writes the table of the targets, each by its name. A target without a name is left
// out.
func (r *report) printTargets(w io.Writer, name func(target) string) {
	rows := [][]string{{"What", "Target", "Figure", "Verdict"}}
	for _, p := range r.parts {
		for _, t := range p.targets {
			if what := name(t); what != "" {
				rows = append(rows, []string{what, t.want(), number(t.figure), t.verdict()})
			}
		}
	}
	printTable(w, 1, rows)
}

func (t target) want() string {
	if t.least {
		return "at least " + number(t.limit)
	}
	return "at most " + number(t.limit)
}

func (p part) printFigures(w io.Writer) {
	rows := [][]string{{"System", "What"}}
	for _, c := range columns {
		if p.has(c) {
			rows[0] = append(rows[0], string(c))
		}
	}
	for _, t := range p.scenario.trials {
		found := p.results.summary(t)
		if len(found) == 0 {
			continue
		}
		row := []string{t.system, t.what}
		for _, c := range rows[0][2:] {
			text := ""
			if value, ok := found[column(c)]; ok {
				text = number(value)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	printTable(w, 2, rows)
}

func (p part) has(c column) bool {
	return slices.ContainsFunc(p.scenario.trials, func(t trial) bool { return !math.IsNaN(p.results.get(t, c)) })
}

// printTable writes a table whose first row is its heading. The columns after the first few, which
// are text, are numbers.
func printTable(w io.Writer, texts int, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|%s%s\n", strings.Repeat("---|", texts), strings.Repeat("--:|", len(row)-texts))
		}
	}
}

// number writes a figure with as many digits as mean something.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case v == math.Trunc(v) && abs < 1000:
		return fmt.Sprintf("%.0f", v)
	case abs < 1:
		return fmt.Sprintf("%.3g", v)
	case abs < 10:
		return fmt.Sprintf("%.2f", v)
	case abs < 100:
		return fmt.Sprintf("%.1f", v)
	}
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// count writes a whole number with commas.
func count(n int) string { return number(float64(n)) }

const (
	beginMark = "<!-- bench:begin -->\n"
	endMark   = "<!-- bench:end -->"
)

// write writes the report to out.md and out.json, and some targets into a README, if asked.
func (r *report) write(out, readme string) error {
	if out != "" {
		var text strings.Builder
		text.WriteString("# Results\n\nWritten by `make bench`. [README.md](README.md) says how each figure is taken.\n\n")
		r.print(&text)
		if err := os.WriteFile(out+".md", []byte(text.String()), 0o644); err != nil {
			return err
		}
		if err := r.writeJSON(out + ".json"); err != nil {
			return err
		}
	}
	if readme == "" {
		return nil
	}
	old, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(old), beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return fmt.Errorf("%s lacks the lines %s and %s", readme, strings.TrimSpace(beginMark), endMark)
	}
	var text strings.Builder
	text.WriteString(before + beginMark + r.heading + "\n\n")
	r.printTargets(&text, func(t target) string { return t.short })
	text.WriteString(endMark + after)
	return os.WriteFile(readme, []byte(text.String()), 0o644)
}

func (r *report) writeJSON(file string) error {
	type jsonTarget struct {
		What    string   `json:"what"`
		Want    string   `json:"want"`
		Figure  *float64 `json:"figure"` // null: not measured
		Verdict string   `json:"verdict"`
	}
	type jsonTrial struct {
		System  string    `json:"system"`
		What    string    `json:"what"`
		Figures figures   `json:"figures"`
		Rounds  []figures `json:"rounds"`
	}
	type jsonPart struct {
		Scenario string       `json:"scenario"`
		Title    string       `json:"title"`
		About    string       `json:"about"`
		Trials   []jsonTrial  `json:"trials"`
		Targets  []jsonTarget `json:"targets"`
	}
	var parts []jsonPart
	for _, p := range r.parts {
		part := jsonPart{Scenario: p.scenario.name, Title: p.scenario.title, About: p.scenario.about}
		for _, t := range p.scenario.trials {
			if rounds, ok := p.results[t.key()]; ok {
				part.Trials = append(part.Trials, jsonTrial{t.system, t.what, p.results.summary(t), rounds})
			}
		}
		for _, t := range p.targets {
			target := jsonTarget{What: t.what, Want: t.want(), Verdict: t.verdict()}
			if !math.IsNaN(t.figure) {
				target.Figure = &t.figure
			}
			part.Targets = append(part.Targets, target)
		}
		parts = append(parts, part)
	}
	text, err := json.MarshalIndent(map[string]any{"run": r.heading, "scenarios": parts}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
