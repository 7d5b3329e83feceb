package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// clean returns text without characters that could control a terminal or mislead its reader: each
// is written as in a Go string, such as \x1b. All text from Redis is printed through clean, or as
// JSON through cleanJSON.
func clean(text string) string {
	plain := func(r rune) bool { return r == ' ' || strconv.IsPrint(r) && r != utf8.RuneError }
	if !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if plain(r) {
			b.WriteString(text[:n])
		} else {
			quoted := strconv.QuoteToASCII(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// cleanJSON is clean for encoded JSON. In JSON all such characters are inside of texts.
func cleanJSON(encoded []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(encoded) {
		switch {
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

// output prints what a command has to say: tables and sentences, or one JSON object a line.
type output struct {
	out              *sink
	err              io.Writer
	json             bool
	colour           bool // of out
	follows          bool // err is a terminal, so that progress can be shown
	progressed       bool // a line of progress is shown
	lastProgress     time.Time
	progressInterval time.Duration
}

// sink is where results go. It keeps the first error, so that no command succeeds whose results are
// lost, such as on a full disk.
type sink struct {
	to     io.Writer
	failed error
}

func (s *sink) Write(p []byte) (n int, err error) {
	if s.failed != nil {
		return 0, s.failed
	}
	n, err = s.to.Write(p)
	if err != nil {
		s.failed = fmt.Errorf("the output could not be written: %w", err)
	}
	return n, s.failed
}

func newOutput(sys system, asJSON bool) *output {
	o := &output{out: &sink{to: sys.stdout}, err: sys.stderr, json: asJSON, follows: isTerminal(sys.stderr), progressInterval: 10 * time.Second}
	o.colour = isTerminal(sys.stdout) && !asJSON && !slices.ContainsFunc(sys.environment, func(line string) bool {
		return strings.HasPrefix(line, "NO_COLOR=") && line != "NO_COLOR=" || line == "TERM=dumb"
	})
	if o.follows {
		o.progressInterval = 100 * time.Millisecond
	}
	return o
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// say prints an object as JSON, or else a sentence.
func (o *output) say(object any, format string, args ...any) {
	if o.json {
		o.object(object)
		return
	}
	_, _ = fmt.Fprintln(o.out, clean(fmt.Sprintf(format, args...)))
}

// marked prints a sentence behind a word in a style. Without a word, the sentence has the style.
func (o *output) marked(s style, word, sentence string) {
	if word == "" {
		_, _ = fmt.Fprintln(o.out, "          "+o.paint(clean(sentence), s))
		return
	}
	_, _ = fmt.Fprintln(o.out, o.paint(fmt.Sprintf("%-10s", clean(word)), s)+clean(sentence))
}

// note prints a sentence for people on standard error.
func (o *output) note(format string, args ...any) {
	o.endProgress()
	_, _ = fmt.Fprintln(o.err, clean(fmt.Sprintf(format, args...)))
}

// object prints a struct as a line of JSON. Texts that are not UTF-8 are base64: see
// jsontext.Object.
func (o *output) object(object any) {
	encoded, err := encode(object)
	if err != nil {
		panic(err) // a type that JSON does not know
	}
	_, _ = o.out.Write(append(cleanJSON(encoded), '\n'))
}

func encode(object any) ([]byte, error) {
	if own, ok := object.(json.Marshaler); ok {
		return own.MarshalJSON()
	}
	return jsontext.Object(object)
}

// ofTopic is the object of something of a topic: its JSON, with the topic in front.
type ofTopic struct {
	topic string
	value any
}

// MarshalJSON returns the object of the value with one field more.
func (o ofTopic) MarshalJSON() ([]byte, error) {
	topic, err := jsontext.Object(struct {
		Topic string `json:"topic"`
	}{o.topic})
	if err != nil {
		return nil, err
	}
	value, err := encode(o.value)
	if err != nil {
		return nil, err
	}
	return slices.Concat(topic[:len(topic)-1], []byte(","), value[1:]), nil
}

// progress shows how far a long command is, on standard error: in one line of a terminal, or else
// in a line each ten seconds.
func (o *output) progress(format string, args ...any) {
	now := time.Now()
	if o.lastProgress.IsZero() && !o.follows {
		o.lastProgress = now // short commands say nothing
	}
	if now.Sub(o.lastProgress) < o.progressInterval {
		return
	}
	o.lastProgress = now
	text := clean(fmt.Sprintf(format, args...))
	if o.follows {
		o.progressed = true
		_, _ = fmt.Fprintf(o.err, "\r\x1b[K%s", text)
		return
	}
	_, _ = fmt.Fprintln(o.err, text)
}

// endProgress removes the line of progress.
func (o *output) endProgress() {
	if o.progressed {
		_, _ = fmt.Fprint(o.err, "\r\x1b[K")
		o.progressed = false
	}
}

// style is how a cell stands out on a terminal: parameters of the escape sequence.
type style string

const (
	alarming = style("31;1")
	doubtful = style("33")
	fine     = style("32")
	faint    = style("2")
	heading  = style("1")
)

// styled is a cell with a style.
type styled struct {
	value any
	style style
}

// in returns the value in the style if the condition holds.
func (s style) in(value any, holds bool) any {
	if !holds {
		return value
	}
	return styled{value, s}
}

// paint returns clean text in a style.
func (o *output) paint(text string, s style) string {
	if !o.colour || s == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// table collects rows of aligned columns. With JSON it prints the object of each row instead.
type table struct {
	o      *output
	header []string
	rows   [][]any
}

func (o *output) table(header ...string) *table { return &table{o: o, header: header} }

// row adds a row. Numbers are aligned to the right.
func (t *table) row(object any, cells ...any) {
	if t.o.json {
		t.o.object(object)
		return
	}
	t.rows = append(t.rows, cells)
}

// flush prints the rows, or if there are none, and no error, the sentence. It returns the error,
// or else that of printing.
func (t *table) flush(none string, err error) error {
	t.o.endProgress()
	switch {
	case t.o.json:
	case len(t.rows) == 0 && err == nil:
		t.o.note("%s", none)
	case len(t.rows) > 0:
		for _, line := range t.lines() {
			_, _ = fmt.Fprintln(t.o.out, line)
		}
	}
	return cmp.Or(err, t.o.out.failed)
}

// width returns how wide the lines are.
func (t *table) width() (widest int) {
	rows := t.rows
	for _, line := range t.lines() {
		widest = max(widest, columns(line))
	}
	t.rows = rows
	return widest
}

// lines returns the header and the rows as text.
func (t *table) lines() (lines []string) {
	widths, right := make([]int, len(t.header)), make([]bool, len(t.header))
	texts := make([][]string, len(t.rows))
	for i, h := range t.header {
		widths[i] = columns(h)
	}
	for r, row := range t.rows {
		for c, value := range row {
			_, number := plain(value).(int)
			right[c] = right[c] || number
			text := cell(value)
			widths[c] = max(widths[c], columns(text))
			texts[r] = append(texts[r], text)
		}
	}
	line := func(texts []string, styles func(i int) style) string {
		var b strings.Builder
		for i, text := range texts {
			fill := strings.Repeat(" ", widths[i]-columns(text))
			if right[i] {
				b.WriteString(fill)
			}
			b.WriteString(t.o.paint(text, styles(i)))
			if i < len(texts)-1 {
				if !right[i] {
					b.WriteString(fill)
				}
				b.WriteString("  ")
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	lines = append(lines, line(t.header, func(int) style { return heading }))
	for r, row := range t.rows {
		lines = append(lines, line(texts[r], func(i int) style {
			if s, ok := row[i].(styled); ok {
				return s.style
			}
			return ""
		}))
	}
	t.rows = nil
	return lines
}

func plain(value any) any {
	if s, ok := value.(styled); ok {
		return s.value
	}
	return value
}

// cell returns the clean text of a value. Zero times, durations and texts are a dash.
func cell(value any) string {
	switch v := plain(value).(type) {
	case int:
		return texts.Number(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case time.Time:
		if v.IsZero() {
			return "-"
		}
		return stamp(v)
	case time.Duration:
		if v == 0 {
			return "-"
		}
		return span(v)
	case string:
		if v == "" {
			return "-"
		}
		return clean(v)
	default:
		return clean(fmt.Sprint(v))
	}
}

// stamp returns a time in the zone of this machine, to the second. --utc makes that UTC.
func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05Z07:00") }

// span returns a duration in its two largest units, such as 2h5m.
func span(d time.Duration) string {
	switch a := d.Abs(); {
	case a >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), (d%(24*time.Hour)).Abs()/time.Hour)
	case a >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case a >= 10*time.Second:
		return d.Round(time.Second).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}

// ago returns how long before now a time was, or in how long it is.
func ago(t, now time.Time) string {
	switch d := now.Sub(t); {
	case t.IsZero():
		return "-"
	case d == 0:
		return "now"
	case d > 0:
		return span(d) + " ago"
	default:
		return "in " + span(-d)
	}
}
