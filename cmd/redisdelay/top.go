package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) topCommand() *cobra.Command {
	var once bool
	var interval time.Duration
	t := &top{}
	c := &cobra.Command{Use: "top [TOPIC...]", Short: "a live view of the topics, those with problems first", ValidArgsFunction: a.completeTopic,
		Long:    `Shows the topics live, those with problems first. Rates and lateness are those of the last interval. BEHIND says how late the next ready message is, and whether the group catches up. s sorts, / filters, g shows the groups, j and k scroll, q quits.`,
		Example: "  redisdelay top\n  redisdelay top --once --groups --sort behind",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if interval < 100*time.Millisecond {
				return refuse("--interval is %v; it must be at least 100ms", interval)
			}
			if _, known := topSorts[t.sort]; !known {
				return refuse("--sort is %q; it must be one of %s", t.sort, strings.Join(topOrders, ", "))
			}
			t.app, t.topics, t.interval = a, args, interval
			if once || a.json {
				return t.print(ctx, once)
			}
			return t.live(ctx)
		})}
	c.Flags().BoolVar(&once, "once", false, "print once, after one interval")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two readings")
	c.Flags().StringVar(&t.sort, "sort", topOrders[0], "which come first: "+strings.Join(topOrders, ", "))
	c.Flags().StringVar(&t.match, "match", "", "only topics with this in their name")
	c.Flags().BoolVar(&t.groups, "groups", false, "a row for each consumer group")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(topOrders, cobra.ShellCompDirectiveNoFileComp))
	a.jsonFlag(c.Flags())
	return c
}

// topOrders are the orders of the rows, as --sort names them, and s takes the next one.
var topOrders = []string{"problem", "behind", "ready", "dead", "out", "waiting", "name"}

// topSorts are the orders. Rows that are equal are by name.
var topSorts = map[string]func(a, b topRow) int{
	"problem": func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.worst, a.worst), cmp.Compare(b.Dead+b.Ready, a.Dead+a.Ready))
	},
	"behind":  func(a, b topRow) int { return cmp.Compare(b.Behind, a.Behind) },
	"ready":   func(a, b topRow) int { return cmp.Compare(b.Ready, a.Ready) },
	"dead":    func(a, b topRow) int { return cmp.Compare(b.Dead, a.Dead) },
	"out":     func(a, b topRow) int { return cmp.Compare(b.Out, a.Out) },
	"waiting": func(a, b topRow) int { return cmp.Compare(b.Waiting, a.Waiting) },
	"name":    func(topRow, topRow) int { return 0 },
}

// top shows readings of the topics.
type top struct {
	app      *app
	topics   []string
	interval time.Duration
	sort     string                 // a name of topSorts
	match    string                 // part of the names of topics that are shown
	groups   bool                   // a row for each group
	first    int                    // the row that is on top of the screen
	typing   atomic.Bool            // the filter is being typed
	last     map[string]admin.Stats // the reading before
}

// topRow is the object of a topic.
type topRow struct {
	Topic    string        `json:"topic"`
	Waiting  int           `json:"waiting"`
	Ready    int           `json:"ready"`
	InHand   int           `json:"in_hand"`
	Retrying int           `json:"retrying"`
	Dead     int           `json:"dead"`
	In       float64       `json:"in_per_second"`
	Out      float64       `json:"out_per_second"`
	P50      string        `json:"late_p50,omitempty"`
	P99      string        `json:"late_p99,omitempty"`
	NextDue  time.Time     `json:"next_due"`
	Behind   time.Duration `json:"behind"` // how late the next ready message is, of the group that is furthest behind
	Problem  string        `json:"problem,omitempty"`
	Limited  string        `json:"limited,omitempty"` // which groups wait for their limit

	Groups []topGroup `json:"groups"`

	worst   level
	due     string // NextDue from now
	lagging admin.GroupRates
}

// topGroup is the object of a group in a topRow.
type topGroup struct {
	Group    string        `json:"group"`
	Ready    int           `json:"ready"`
	InHand   int           `json:"in_hand"`
	Retrying int           `json:"retrying"`
	Dead     int           `json:"dead"`
	Out      float64       `json:"out_per_second"`
	P50      string        `json:"late_p50,omitempty"`
	P99      string        `json:"late_p99,omitempty"`
	Behind   time.Duration `json:"behind"`            // how late the next ready message is
	Growth   float64       `json:"growth_per_second"` // of the ready messages
	Trend    string        `json:"trend,omitempty"`   // in words; "": the group keeps up
}

// MarshalJSON writes it as the tool writes all objects.
func (g topGroup) MarshalJSON() ([]byte, error) { return jsontext.Object(g) }

// read takes a reading, and returns a row for each topic, the worst first.
func (t *top) read(ctx context.Context) (rows []topRow, err error) {
	reading := map[string]admin.Stats{}
	err = t.app.overview(ctx, t.topics, func(s admin.Stats) {
		before := t.last[s.Topic]
		reading[s.Topic] = s
		sum := sums(s)
		r := topRow{Topic: s.Topic, Waiting: s.Waiting, Ready: sum.Ready, InHand: sum.InHand, Retrying: sum.Retrying, Dead: sum.Dead}
		r.worst, r.Problem = judge(s)
		r.Limited = limitedNow(s)
		if r.NextDue = s.NextDue; !s.NextDue.IsZero() {
			r.due = ago(s.NextDue, s.Now)
		}
		r.rates(s, before)
		rows = append(rows, r)
	})
	t.last = reading
	t.arrange(rows)
	return rows, err
}

// arrange sorts rows.
func (t *top) arrange(rows []topRow) {
	by := topSorts[t.sort]
	slices.SortStableFunc(rows, func(a, b topRow) int { return cmp.Or(by(a, b), cmp.Compare(a.Topic, b.Topic)) })
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
		rows = t.matching(rows)
		none := "There is no topic." + t.app.where()
		if len(rows) > 0 {
			none = "There is no group."
		}
		if err := t.table(rows, 0).flush(none, nil); err != nil || once {
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

// matching returns the rows of topics that --match or the filter chooses.
func (t *top) matching(rows []topRow) []topRow {
	if t.match == "" {
		return rows
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r topRow) bool {
		return !strings.Contains(strings.ToLower(r.Topic), strings.ToLower(t.match))
	})
}

// longest is how many characters of a name are shown.
const longest = 36

// shortest is how many are shown at least, on a narrow screen.
const shortest = 8

// table returns the rows as a table that is at most so wide, if that can be; 0 is any width. A
// narrow one leaves columns out, but keeps the counts.
func (t *top) table(rows []topRow, width int) *table {
	cells := t.topicCells
	header := []string{"TOPIC", "PROBLEM", "WAITING", "READY", "IN HAND", "RETRYING", "DEAD", "IN/S", "OUT/S", "LATE P50", "P99", "BEHIND", "NEXT DUE"}
	leaves := []string{"LATE P50", "NEXT DUE", "IN/S", "P99", "OUT/S", "PROBLEM", "BEHIND"}
	if t.groups {
		cells = t.groupCells
		header = []string{"TOPIC", "GROUP", "READY", "IN HAND", "RETRYING", "DEAD", "OUT/S", "LATE P50", "P99", "BEHIND"}
		leaves = []string{"LATE P50", "P99", "OUT/S", "BEHIND"}
	}
	left := map[string]bool{}
	for names := longest; ; {
		table := t.app.out.table(slices.DeleteFunc(slices.Clone(header), func(h string) bool { return left[h] })...)
		for _, r := range rows {
			for _, full := range cells(r, names) {
				var row []any
				for i, h := range header {
					if !left[h] {
						row = append(row, full[i])
					}
				}
				table.row(r, row...)
				if t.app.out.json {
					break
				}
			}
		}
		if width == 0 || table.width() <= width || names <= shortest {
			return table
		}
		if len(leaves) > 0 {
			left[leaves[0]], leaves = true, leaves[1:]
		} else {
			names = max(names-(table.width()-width), shortest)
		}
	}
}

// topicCells returns the cells of a topic.
func (t *top) topicCells(r topRow, names int) [][]any {
	return [][]any{{cut(clean(r.Topic), names), r.worst.cell(cut(clean(state(r.Problem, r.Limited)), names)), r.Waiting, r.Ready, r.InHand, r.Retrying,
		alarming.in(r.Dead, r.Dead > 0), fmt.Sprintf("%.1f", r.In), fmt.Sprintf("%.1f", r.Out), r.P50, r.P99, behind(r.lagging, r.lagging.Group), r.due}}
}

// groupCells returns the cells of each group of a topic.
func (t *top) groupCells(r topRow, names int) (rows [][]any) {
	for _, g := range r.Groups {
		rows = append(rows, []any{cut(clean(r.Topic), names), cut(clean(g.Group), names), g.Ready, g.InHand, g.Retrying, alarming.in(g.Dead, g.Dead > 0),
			fmt.Sprintf("%.1f", g.Out), g.P50, g.P99, behind(admin.GroupRates{Behind: g.Behind, Growth: g.Growth, Ready: g.Ready}, "")})
	}
	return rows
}

// behind says how far a group is behind, and whether it catches up.
func behind(g admin.GroupRates, name string) any {
	trend := g.Trend()
	if trend == "" {
		return ""
	}
	text := fmt.Sprintf("%s, %s", span(g.Behind), trend)
	if name != "" {
		text = cut(clean(name), 20) + " " + text
	}
	return styled{text, map[bool]style{true: alarming, false: doubtful}[g.IsGrowing()]}
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
	keys := make(chan byte)
	go func() {
		key := make([]byte, 1)
		for {
			n, err := in.Read(key)
			if err != nil || n == 1 && (key[0] == 3 || key[0] == 'q' && !t.typing.Load()) { // 3: Ctrl-C
				quit()
				return
			}
			if n == 1 {
				select {
				case keys <- key[0]:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	var rows []topRow
	for wait := min(t.interval, 500*time.Millisecond); ; wait = t.interval { // the second reading has rates
		rows, err = t.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.draw(out, rows, err)
		next := time.NewTimer(wait)
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
				waits = false
			case key := <-keys:
				t.press(key)
				t.arrange(rows)
				t.draw(out, rows, err)
			}
		}
	}
}

// press does what a key says. While a filter is typed, keys are its text.
func (t *top) press(key byte) {
	switch {
	case t.typing.Load() && (key == '\r' || key == '\n' || key == 27):
		t.typing.Store(false)
		if key == 27 { // Escape
			t.match = ""
		}
	case t.typing.Load() && (key == 127 || key == 8):
		t.match = t.match[:max(len(t.match)-1, 0)]
	case t.typing.Load():
		if key >= ' ' {
			t.match, t.first = t.match+string(rune(key)), 0
		}
	case key == '/':
		t.match = ""
		t.typing.Store(true)
	case key == 's':
		t.sort, t.first = topOrders[(slices.Index(topOrders, t.sort)+1)%len(topOrders)], 0
	case key == 'g':
		t.groups, t.first = !t.groups, 0
	case key == 'j' || key == 'B': // the last byte of the sequence of a cursor key
		t.first++
	case key == 'k' || key == 'A':
		t.first = max(t.first-1, 0)
	case key == ' ' || key == 'f':
		t.first += screenful
	case key == 'b':
		t.first = max(t.first-screenful, 0)
	}
}

// screenful is by how many rows a key scrolls.
const screenful = 10

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
	rows = t.matching(rows)
	head := fmt.Sprintf("%s, %d with problems, by %s. Every %v. s sorts, / filters, g groups, j k scroll, q quits.",
		texts.Many(len(rows), "topic"), problems, t.sort, t.interval)
	switch {
	case err != nil:
		head = "Cannot read: " + clean(err.Error())
	case t.typing.Load():
		head = "Topics with: " + clean(t.match) + "_"
	case t.match != "":
		head = fmt.Sprintf("With %q: %s", t.match, head)
	}
	lines := t.table(rows, width).lines()
	t.first = min(t.first, max(len(lines)-1-max(height-3, 0), 0))
	if all, room := len(lines)-1, max(height-3, 0); all > room && err == nil && !t.typing.Load() { // a part of them fits
		head = fmt.Sprintf("Rows %s to %s of %s. %s", texts.Number(min(t.first+1, all)), texts.Number(min(t.first+room, all)), texts.Number(all), head)
	}
	lines = slices.Delete(lines, 1, 1+min(t.first, len(lines)-1))
	lines = append([]string{cut(head, width), ""}, lines...)
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
			if n += wide.RuneWidth(r); n > width {
				continue
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}

// rates sets what follows from two readings.
func (r *topRow) rates(now, before admin.Stats) {
	rates := now.RatesSince(before)
	r.In, r.Out = rates.In, rates.Out
	r.P50, r.P99 = atMost(rates.Late.Quantile(0.5)), atMost(rates.Late.Quantile(0.99))
	r.lagging = rates.Worst()
	r.Behind = r.lagging.Behind
	for i, g := range rates.Groups {
		s := now.Groups[i]
		r.Groups = append(r.Groups, topGroup{Group: g.Group, Ready: s.Ready, InHand: s.InHand, Retrying: s.Retrying, Dead: s.Dead, Out: g.Out,
			P50: atMost(g.Late.Quantile(0.5)), P99: atMost(g.Late.Quantile(0.99)), Behind: g.Behind, Growth: g.Growth, Trend: g.Trend()})
	}
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
