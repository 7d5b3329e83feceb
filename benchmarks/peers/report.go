package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

// row has the figures of one system.
type row struct {
	Name, Library, Server, URL, How string

	LeftOut string `json:",omitempty"` // why it was not measured
	Failed  string `json:",omitempty"`

	Publish     float64 // messages a second, one a call
	PublishBulk float64 // messages a second, many a call; 0: there is no such call
	Deliver     float64 // messages a second

	LateP50, LateP99, LateMax float64 // ms
	Early, Twice              int     // messages

	ServerCPU, ClientCPU   float64 // µs a message
	Memory, Disk           float64 // bytes of the server for a message that waits
	IdleServer, IdleWorker float64 // ms of processor time a second
	IdleMemory             float64 // MiB of the server

	KillLost, KillTwice int
	KillLate            float64 // s

	Load  float64 // the highest load average after a phase
	Moved int     // phases with a mark: the machine moved in each try
}

// machineWas notes how the machine was in a phase.
func (r *row) machineWas(s machine.State) {
	if load, ok := machine.Load(); ok {
		r.Load = max(r.Load, load)
	}
	if s.Moved() {
		r.Moved++
	}
}

// column is a figure that tables show.
type column struct {
	title string
	value func(r row) float64
	// best says which figures are better: 1: large ones; -1: small ones; 0: neither.
	best int
	// none says that zero means not measured.
	none bool
	// delays says that the figure of a system without delays has another meaning.
	delays bool
}

var (
	publish     = column{title: "publish/s, 1 a call", value: func(r row) float64 { return r.Publish }, best: 1}
	publishBulk = column{title: "publish/s, 100 a call", value: func(r row) float64 { return r.PublishBulk }, best: 1, none: true}
	deliver     = column{title: "deliver/s", value: func(r row) float64 { return r.Deliver }, best: 1}
	lateP50     = column{title: "late p50 ms", value: func(r row) float64 { return r.LateP50 }, best: -1, delays: true}
	lateP99     = column{title: "late p99 ms", value: func(r row) float64 { return r.LateP99 }, best: -1, delays: true}
	lateMax     = column{title: "late max ms", value: func(r row) float64 { return r.LateMax }, best: -1, delays: true}
	early       = column{title: "early", value: func(r row) float64 { return float64(r.Early) }, best: -1}
	serverCPU   = column{title: "server µs", value: func(r row) float64 { return r.ServerCPU }, best: -1}
	clientCPU   = column{title: "client µs", value: func(r row) float64 { return r.ClientCPU }, best: -1}
	memory      = column{title: "memory bytes", value: func(r row) float64 { return r.Memory }, best: -1}
	disk        = column{title: "disk bytes", value: func(r row) float64 { return r.Disk }, best: -1}
	idleServer  = column{title: "idle server ms/s", value: func(r row) float64 { return r.IdleServer }, best: -1}
	idleWorker  = column{title: "idle worker ms/s", value: func(r row) float64 { return r.IdleWorker }, best: -1}
	idleMemory  = column{title: "idle server MiB", value: func(r row) float64 { return r.IdleMemory }, best: -1}
	killLost    = column{title: "lost", value: func(r row) float64 { return float64(r.KillLost) }, best: -1}
	killTwice   = column{title: "twice", value: func(r row) float64 { return float64(r.KillTwice) }, best: -1}
	killLate    = column{title: "latest after the kill s", value: func(r row) float64 { return r.KillLate }, best: -1}
	load        = column{title: "load average", value: func(r row) float64 { return r.Load }}
	moved       = column{title: "phases in which the machine moved", value: func(r row) float64 { return float64(r.Moved) }}

	// chosen are the columns of the one table in docs/choose.md.
	chosen = []column{publish, deliver, lateP50, lateP99, lateMax, early, serverCPU, memory, idleServer, killLost, killLate, load, moved}
)

// report is all that was found.
type report struct {
	Heading string
	Systems []row
}

func newReport(s sizes) *report {
	return &report{Heading: fmt.Sprintf("%s messages of 100 bytes, due after %v to %v; %d producers; all on one machine with %d CPUs; %s %s/%s; %s.",
		number(float64(s.messages)), s.minDelay, s.maxDelay, producers, runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		time.Now().UTC().Format(time.DateOnly))}
}

// measured are the systems that have figures.
func (r *report) measured() (rows []row) {
	for _, row := range r.Systems {
		if row.LeftOut == "" && row.Failed == "" {
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Beside what else can delay messages\n\n%s\n`make bench-peers` writes this file; [README.md](README.md) says how figures are taken. "+
		"The best of a column is bold. watermill-redisstream has no delays: its lateness is the time from publishing to arrival, and "+
		"none of its figures is bold.\n", r.Heading)
	for _, t := range []struct {
		title   string
		columns []column
	}{
		{"Rates", []column{publish, publishBulk, deliver}},
		{"Lateness", []column{lateP50, lateP99, lateMax, early}},
		{"What a message costs", []column{serverCPU, clientCPU, memory, disk}},
		{"What it costs to wait", []column{idleServer, idleWorker, idleMemory}},
		{"After a kill -9 of the worker", []column{killLost, killTwice, killLate}},
		{"The machine meanwhile", []column{load, moved}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s", t.title, r.table(t.columns))
	}
	fmt.Fprintf(&b, "\n## Where others are better\n\n%s", r.better())
	b.WriteString("\n## How each is set up\n\n")
	for _, row := range r.Systems {
		fmt.Fprintf(&b, "- [%s](%s)", row.Name, row.URL)
		if row.Library != "" {
			fmt.Fprintf(&b, ": %s, %s", row.Library, row.Server)
		}
		fmt.Fprintf(&b, ". %s\n", row.How)
	}
	b.WriteString("\nServers: ")
	for i, k := range []serverKind{redisServer, natsServer, rabbitServer, postgresServer} {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %s", k.name, k.how)
	}
	b.WriteString(".\n\n## Left out\n\n")
	for _, name := range slices.Sorted(maps.Keys(leftOut)) {
		fmt.Fprintf(&b, "- %s: %s.\n", name, leftOut[name])
	}
	for _, row := range r.Systems {
		if row.LeftOut != "" || row.Failed != "" {
			fmt.Fprintf(&b, "- %s: %s.\n", row.Name, row.LeftOut+row.Failed)
		}
	}
	return b.String()
}

// table has one line for each system.
func (r *report) table(columns []column) string {
	var b strings.Builder
	b.WriteString("| System |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, row := range r.measured() {
		fmt.Fprintf(&b, "| %s |", row.Name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", r.cell(c, row))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (r *report) cell(c column, of row) string {
	if c.none && c.value(of) == 0 {
		return "–"
	}
	text := number(c.value(of))
	if !withDelays(of) || c.best == 0 {
		return text
	}
	for _, other := range r.measured() {
		if withDelays(other) && c.better(other, of) {
			return text
		}
	}
	return "**" + text + "**"
}

// better returns whether one system has a better figure than another.
func (c column) better(one, other row) bool {
	if c.none && c.value(one) == 0 {
		return false
	}
	return c.value(one)*float64(c.best) > c.value(other)*float64(c.best)
}

func withDelays(r row) bool {
	i := slices.IndexFunc(peers, func(p peer) bool { return p.name == r.Name })
	return i >= 0 && peers[i].delays
}

// better lists each figure in which another system is better than this project.
func (r *report) better() string {
	rows := r.measured()
	if len(rows) == 0 || rows[0].Name != peers[0].name {
		return ""
	}
	var b strings.Builder
	ours := rows[0]
	for _, row := range rows[1:] {
		var found []string
		for _, c := range []column{publish, publishBulk, deliver, lateP50, lateP99, lateMax, early, serverCPU, clientCPU, memory, disk,
			idleServer, idleWorker, idleMemory, killLost, killTwice, killLate} {
			if c.better(row, ours) && (withDelays(row) || !c.delays) {
				found = append(found, fmt.Sprintf("%s (%s, not %s)", c.title, number(c.value(row)), number(c.value(ours))))
			}
		}
		if len(found) == 0 {
			found = []string{"none of these figures"}
		}
		fmt.Fprintf(&b, "- %s: %s.\n", row.Name, strings.Join(found, ", "))
	}
	return b.String()
}

// number prints a figure with three digits that count, or all before the point.
func number(f float64) string {
	if f < 0 {
		return "-" + number(-f)
	}
	digits := 0
	for limit := 100.0; f < limit && digits < 3 && f != 0; limit /= 10 {
		digits++
	}
	text := strconv.FormatFloat(f, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}

const beginMark, endMark = "<!-- peers:begin -->\n", "<!-- peers:end -->"

// write writes the results, and the table of chosen columns between the marks of a document.
func (r *report) write(out, choose string) error {
	if out != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err := errors.Join(err, os.WriteFile(out+".json", append(data, '\n'), 0o644),
			os.WriteFile(out+".md", []byte(r.markdown()), 0o644)); err != nil {
			return err
		}
	}
	if choose == "" {
		return nil
	}
	text, err := os.ReadFile(choose)
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(text), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !begun || !ended {
		return fmt.Errorf("%s has no lines %q and %q", choose, strings.TrimSpace(beginMark), endMark)
	}
	written := before + beginMark + r.Heading + "\n\n" + r.table(chosen) + "\nFigures that are better elsewhere than with watermill-redisdelay:\n\n" +
		r.better() + endMark + after
	return os.WriteFile(choose, []byte(written), 0o644)
}
