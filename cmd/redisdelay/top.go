package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) topCommand() *cobra.Command {
	var once bool
	var interval time.Duration
	c := &cobra.Command{Use: "top [TOPIC...]", Short: "a live view of the topics, those with problems first", ValidArgsFunction: a.completeTopic,
		Long:    `Shows the topics live, those with problems first. q quits. Rates and lateness are those of the last interval.`,
		Example: "  redisdelay top\n  redisdelay top --once",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if interval < 100*time.Millisecond {
				return refuse("--interval is %v; it must be at least 100ms", interval)
			}
			t := &top{app: a, topics: args, interval: interval}
			if once || a.json {
				return t.print(ctx, once)
			}
			return t.live(ctx)
		})}
	c.Flags().BoolVar(&once, "once", false, "print once, after one interval")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two readings")
	a.jsonFlag(c.Flags())
	return c
}

// top shows readings of the topics.
type top struct {
	app      *app
	topics   []string
	interval time.Duration
	last     map[string]admin.Stats // the reading before
}

// topRow is the object of a topic.
type topRow struct {
	Topic    string  `json:"topic"`
	Waiting  int     `json:"waiting"`
	Ready    int     `json:"ready"`
	InHand   int     `json:"in_hand"`
	Retrying int     `json:"retrying"`
	Dead     int     `json:"dead"`
	In       float64 `json:"in_per_second"`
	Out      float64 `json:"out_per_second"`
	P50      string  `json:"late_p50,omitempty"`
	P99      string  `json:"late_p99,omitempty"`
	NextDue  string  `json:"next_due,omitempty"`
	Problem  string  `json:"problem,omitempty"`
	Limited  string  `json:"limited,omitempty"` // which groups wait for their limit

	worst level
}

// read takes a reading, and returns a row for each topic, the worst first.
func (t *top) read(ctx context.Context) (rows []topRow, err error) {
	reading := map[string]admin.Stats{}
	err = t.app.overview(ctx, t.topics, func(s admin.Stats) {
		before, seen := t.last[s.Topic]
		reading[s.Topic] = s
		sum := sums(s)
		r := topRow{Topic: s.Topic, Waiting: s.Waiting, Ready: sum.Ready, InHand: sum.InHand, Retrying: sum.Retrying, Dead: sum.Dead}
		r.worst, r.Problem = judge(s)
		r.Limited = limitedNow(s)
		if !s.NextDue.IsZero() {
			r.NextDue = ago(s.NextDue, s.Now)
		}
		if seconds := s.Now.Sub(before.Now).Seconds(); seen && seconds > 0 {
			r.rates(before, s, seconds)
		}
		rows = append(rows, r)
	})
	t.last = reading
	slices.SortStableFunc(rows, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.worst, a.worst), cmp.Compare(b.Dead+b.Ready, a.Dead+a.Ready), cmp.Compare(a.Topic, b.Topic))
	})
	return rows, err
}

// print prints readings one after the other, or one.
func (t *top) print(ctx context.Context, once bool) error {
	if _, err := t.read(ctx); err != nil {
		return err
	}
	for {
		if err := sleep(ctx, t.interval); err != nil {
			return nil
		}
		rows, err := t.read(ctx)
		if err != nil {
			return err
		}
		if err := t.table(rows).flush("There is no topic."+t.app.where(), nil); err != nil || once {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// longest is how many characters of a name are shown.
const longest = 36

func (t *top) table(rows []topRow) *table {
	table := t.app.out.table("TOPIC", "PROBLEM", "WAITING", "READY", "IN HAND", "RETRYING", "DEAD", "IN/S", "OUT/S", "LATE P50", "P99", "NEXT DUE")
	for _, r := range rows {
		table.row(r, cut(clean(r.Topic), longest), r.worst.cell(cut(clean(state(r.Problem, r.Limited)), longest)), r.Waiting, r.Ready, r.InHand, r.Retrying, alarming.in(r.Dead, r.Dead > 0), fmt.Sprintf("%.1f", r.In), fmt.Sprintf("%.1f", r.Out),
			r.P50, r.P99, r.NextDue)
	}
	return table
}

// live shows readings on the whole screen, until q, Ctrl-C or the end of ctx.
func (t *top) live(ctx context.Context) (err error) {
	in, isFile := t.app.sys.stdin.(*os.File)
	out, _ := t.app.sys.stdout.(*os.File)
	if !isFile || !isTerminal(in) || !isTerminal(out) {
		return refuse("top needs a terminal; --once prints one reading, and --json one object a topic and reading")
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	const enter, leave = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	_, _ = fmt.Fprint(out, enter)
	defer func() {
		_, _ = fmt.Fprint(out, leave)
		_ = term.Restore(int(in.Fd()), before)
	}()
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	go func() {
		key := make([]byte, 1)
		for {
			if n, err := in.Read(key); err != nil || n == 1 && (key[0] == 'q' || key[0] == 'Q' || key[0] == 3) { // 3: Ctrl-C
				quit()
				return
			}
		}
	}()
	for wait := min(t.interval, 500*time.Millisecond); ; wait = t.interval { // the second reading has rates
		rows, err := t.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.draw(out, rows, err)
		if sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// draw fills the screen.
func (t *top) draw(out *os.File, rows []topRow, err error) {
	width, height, sizeErr := term.GetSize(int(out.Fd()))
	if sizeErr != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	problems := 0
	for _, r := range rows {
		if r.worst > sound {
			problems++
		}
	}
	head := fmt.Sprintf("redisdelay top: %s, %d with problems. Every %v; q quits.", texts.Many(len(rows), "topic"), problems, t.interval)
	if err != nil {
		head = "Cannot read: " + clean(err.Error())
	}
	shown := rows[:min(len(rows), max(height-3, 0))]
	lines := append([]string{cut(head, width), ""}, t.table(shown).lines()...)
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clipped(line, width) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, _ = fmt.Fprint(out, b.String())
}

// clipped returns the first characters of a painted line, at most width of them.
func clipped(line string, width int) string {
	var b strings.Builder
	n, escape := 0, false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r != 'm'
		default:
			if n++; n > width {
				continue
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}

// rates sets what follows from two readings.
func (r *topRow) rates(before, now admin.Stats, seconds float64) {
	was := map[string]admin.GroupStats{}
	for _, g := range before.Groups {
		was[g.Group] = g
	}
	var late admin.Lateness
	r.In = float64(max(now.Counters.Published-before.Counters.Published, 0)) / seconds
	for _, g := range now.Groups {
		r.Out += float64(max(g.Counters.Delivered-was[g.Group].Counters.Delivered, 0)) / seconds
		late = late.Plus(g.Lateness.Since(was[g.Group].Lateness))
	}
	r.P50, r.P99 = atMost(late.Quantile(0.5)), atMost(late.Quantile(0.99))
}

// atMost returns a bound of lateness, "" for none.
func atMost(d time.Duration) string {
	buckets := admin.Lateness{}.Buckets()
	switch longest := buckets[len(buckets)-2].AtMost; {
	case d == 0:
		return ""
	case d > longest:
		return "> " + span(longest)
	}
	return span(d)
}
