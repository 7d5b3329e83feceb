// Package calendar finds the instants of a recurring schedule from its definition. It is pure.
//
// spec.go reads specs and finds their instants in a time zone. definition.go has what Redis has of
// a schedule. Package periodic publishes by it, and package admin tells by it what is missing.
package calendar

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Series is the instants of a schedule.
type Series interface {
	// Next returns the first instant after t, or zero if there is none.
	Next(t time.Time) time.Time
}

// every is a series of equal steps.
type every struct {
	anchor time.Time // an instant of the series
	step   time.Duration
}

// Next implements Series.
func (e every) Next(t time.Time) time.Time {
	step := e.step.Milliseconds()
	passed := t.UnixMilli() - e.anchor.UnixMilli()
	n := passed / step
	if passed < 0 && passed%step != 0 {
		n-- // the quotient was rounded towards zero
	}
	return time.UnixMilli(e.anchor.UnixMilli() + (n+1)*step)
}

// wall is a series of wall-clock times in a zone.
type wall struct {
	// match finds wall-clock times. It takes and returns them as if they were in UTC.
	match *cron.SpecSchedule
	zone  *time.Location
	// hourly says that all hours match. Then each hour that passes counts. Otherwise each
	// wall-clock time counts once.
	hourly bool
}

// Next looks at one span of constant offset from UTC after the other. Where the clock goes forward,
// the times of a gap count together as its end. Where it goes back, the times that were there
// before do not count again. An hourly series has no such rules: its instants are the times that
// the clock shows.
func (w wall) Next(t time.Time) time.Time {
	for at := t.In(w.zone); ; {
		start, end := span(at)
		_, offset := at.Zone()
		from := shown(t, offset) // later ones are looked for
		if !start.IsZero() && !w.hourly {
			_, before := start.Add(-time.Second).Zone()
			old, new := shown(start, before), shown(start, offset)
			if start.After(t) && old.Before(new) && w.matches(old, new) {
				return start
			}
			if new.Before(old) && from.Before(old) {
				from = old.Add(-time.Second)
			}
		}
		if start.After(t) && from.Before(shown(start, offset)) {
			from = shown(start, offset).Add(-time.Second)
		}
		found := w.nextShown(from)
		if found.IsZero() {
			return found
		}
		found = found.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || found.Before(end) {
			return found
		}
		at = end
	}
}

// span returns between which instants the offset is that of at. On the last day of far leap years
// Go's ZoneBounds ends the span at once. A span that ends too early, before one of the same offset,
// changes nothing.
func span(at time.Time) (start, end time.Time) {
	start, end = at.ZoneBounds()
	if !end.IsZero() && !end.After(at) {
		end = at.Add(24 * time.Hour)
	}
	return start, end
}

// shown returns what a clock with an offset shows at t, as if it were in UTC.
func shown(t time.Time, offset int) time.Time {
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// matches tells whether there is a time from one on, before another.
func (w wall) matches(from, before time.Time) bool {
	found := w.nextShown(from.Add(-time.Second))
	return !found.IsZero() && found.Before(before)
}

// nextShown returns the first wall-clock time after t, or zero if there is none in 40 years. The
// parser's Next looks five years ahead, and some leap days are eight years apart.
func (w wall) nextShown(t time.Time) time.Time {
	for range 8 {
		if found := w.match.Next(t); !found.IsZero() {
			return found
		}
		t = time.Date(t.Year()+6, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Second)
	}
	return time.Time{}
}

// Within limits a series to the instants from Start on and before End. Zero is no limit.
type Within struct {
	Series
	Start, End time.Time
}

// Next implements Series.

func (w Within) Next(t time.Time) time.Time {
	if t.Before(w.Start) {
		t = w.Start.Add(-time.Millisecond)
	}
	found := w.Series.Next(t)
	if !w.End.IsZero() && !found.Before(w.End) {
		return time.Time{}
	}
	return found
}

// Last returns the last instant that is after from and not after t, or zero if there is none.
func Last(s Series, from, t time.Time) (found time.Time) {
	for back := time.Hour; ; back *= 2 {
		begin := t.Add(-back)
		if begin.Before(from) {
			begin = from
		}
		for at := s.Next(begin); !at.IsZero() && !at.After(t); at = s.Next(at) {
			found = at
		}
		if !found.IsZero() || begin.Equal(from) {
			return found
		}
	}
}

// PassedOver returns the last instant after a time that a schedule has passed over, although its
// occurrence was not due by then, or zero. cursor is the last instant that was published or passed
// over, and waiting has those that are in Redis, in order. If there is one, the server's clock was
// ahead when the schedule passed it over.
func PassedOver(s Series, t, cursor time.Time, waiting []time.Time) time.Time {
	until := cursor
	for _, at := range waiting {
		if at.After(t) && !at.After(cursor) { // one after the cursor was cancelled by hand
			until = at.Add(-time.Millisecond)
			break
		}
	}
	if first := s.Next(t); first.IsZero() || first.After(until) {
		return time.Time{}
	}
	return Last(s, t, until)
}

// descriptors are the names of common specs.
var descriptors = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// field is a field of a spec.
type field struct {
	name            string
	lowest, highest int
	names           string // that stand for values, from lowest on
}

// fields are the fields of a spec, the optional one first. A day of the week is up to 7, which is
// Sunday as 0 is.
var fields = []field{
	{"second", 0, 59, ""}, {"minute", 0, 59, ""}, {"hour", 0, 23, ""}, {"day of month", 1, 31, ""},
	{"month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"}, {"day of week", 0, 7, "sun mon tue wed thu fri sat"},
}

// check returns the faults of the field's text. Each says what would be right.
func (f field) check(text string) error {
	var faults []error
	for _, item := range strings.Split(text, ",") {
		if err := f.item(item); err != nil {
			faults = append(faults, fmt.Errorf("%s %q: %w", f.name, text, err))
		}
	}
	return errors.Join(faults...)
}

// item returns the fault of one item of a list.
func (f field) item(item string) error {
	if item == "" {
		return errors.New("an item of the list is empty; want values with one comma between them, such as \"1,2\"")
	}
	values, step, stepped := strings.Cut(item, "/")
	from, to, ranged := strings.Cut(values, "-")
	if values == "*" || values == "?" {
		from, ranged = strconv.Itoa(f.lowest), false
	}
	first, err := f.value(from)
	last := first
	if err == nil && ranged {
		last, err = f.value(to)
	}
	switch {
	case err != nil:
		return err
	case last < first:
		return fmt.Errorf("the range %s runs nowhere, because %s comes before %s; want %s-%d,%d-%s", values, to, from, from, f.end(), f.lowest, to)
	case !stepped:
		return nil
	}
	switch by, err := strconv.Atoi(step); {
	case err != nil || by < 1:
		return fmt.Errorf("the step %q is not a number from 1 to %d", step, f.highest)
	case by > f.highest:
		return fmt.Errorf("the step %d is above %d, so it runs at %d only; want %d for that, a step from 1 to %d, or \"@every\" with a duration",
			by, f.highest, first, first, f.highest)
	}
	return nil
}

// end returns the last value of a range that is written twice around the end of the field.
func (f field) end() int {
	if f.highest == 7 {
		return 6 // a week
	}
	return f.highest
}

// value returns the value that a text stands for.
func (f field) value(text string) (int, error) {
	if i := slices.Index(strings.Fields(f.names), strings.ToLower(text)); i >= 0 {
		return f.lowest + i, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && n >= f.lowest && n <= f.highest {
		return n, nil
	}
	known := ""
	switch {
	case f.highest == 7:
		known = " (0 and 7 are Sunday), or a name such as MON"
	case f.names != "":
		known = ", or a name such as JAN"
	}
	return 0, fmt.Errorf("%q is not a number from %d to %d%s", text, f.lowest, f.highest, known)
}

var whole = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Parse reads a spec. anchor is that of "@every" if the spec has none.
func Parse(spec string, zone *time.Location, anchor time.Time) (Series, error) {
	spec = strings.TrimSpace(spec)
	if rest, ok := strings.CutPrefix(spec, "@every "); ok {
		return parseEvery(rest, anchor)
	}
	if strings.HasPrefix(spec, "@") {
		cronSpec, known := descriptors[spec]
		if !known {
			return nil, fmt.Errorf("%q is not known; want %s, or \"@every 90m\"", spec, strings.Join(slices.Sorted(maps.Keys(descriptors)), ", "))
		}
		spec = cronSpec
	}
	if strings.HasPrefix(spec, "TZ=") || strings.HasPrefix(spec, "CRON_TZ=") {
		return nil, errors.New("it has a time zone; set Location instead")
	}
	parts := strings.Fields(spec)
	switch len(parts) {
	case len(fields):
	case len(fields) - 1:
		parts = slices.Insert(parts, 0, "0")
	default:
		return nil, fmt.Errorf("it has %d fields; want 5 (minute, hour, day of month, month, day of week), or 6 with the second first", len(parts))
	}
	var faults []error
	for i, field := range fields {
		faults = append(faults, field.check(parts[i]))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	parts[5] = sunday(parts[5])
	parsed, err := whole.Parse(strings.Join(parts, " "))
	match, ok := parsed.(*cron.SpecSchedule)
	if err != nil || !ok {
		return nil, fmt.Errorf("unexpected %T: %w", parsed, err)
	}
	match.Location = time.UTC
	const allHours = 1<<24 - 1
	w := wall{match: match, zone: zone, hourly: match.Hour&allHours == allHours}
	if w.nextShown(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("there is never a day %q of month %q", parts[3], parts[4])
	}
	return w, nil
}

// sunday writes the 7 of a day of the week, which is Sunday too, as 0.
func sunday(field string) string {
	parts := strings.Split(field, ",")
	for i, part := range parts {
		days, step, stepped := strings.Cut(part, "/")
		first, upTo, ranged := strings.Cut(days, "-")
		switch from, err := strconv.Atoi(first); {
		case days == "7" && !stepped:
			parts[i] = "0"
		case ranged && upTo == "7" && err == nil && from <= 7:
			by, err := strconv.Atoi(step)
			if !stepped {
				by, err = 1, nil
			}
			if err != nil || by < 1 {
				continue // the parser says what is wrong
			}
			var list []string
			for day := from; day <= 7; day += by {
				list = append(list, strconv.Itoa(day%7))
			}
			parts[i] = strings.Join(list, ",")
		}
	}
	return strings.Join(parts, ",")
}

// parseEvery reads what follows "@every ": a duration, and "from" and an instant if wanted.
func parseEvery(rest string, anchor time.Time) (Series, error) {
	duration, from, anchored := strings.Cut(strings.TrimSpace(rest), " from ")
	var faults []error
	step, err := time.ParseDuration(strings.TrimSpace(duration))
	if err != nil {
		faults = append(faults, fmt.Errorf("%q is no duration, such as \"90m\"", duration))
	} else if step < time.Second || step%time.Millisecond != 0 {
		faults = append(faults, fmt.Errorf("the duration %v is not at least a second and in whole milliseconds", step))
	}
	if anchored {
		if anchor, err = time.Parse(time.RFC3339Nano, strings.TrimSpace(from)); err != nil {
			faults = append(faults, fmt.Errorf("%q is no instant in RFC 3339, such as \"2026-01-01T06:00:00+01:00\"", from))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if anchor.IsZero() {
		anchor = time.Unix(0, 0)
	}
	return every{anchor: anchor, step: step}, nil
}

// Rules returns a text that differs if a zone has other rules. Programs with other data of time
// zones have other instants, so they have another definition of a schedule.
func Rules(zone *time.Location) string {
	hash := sha256.New()
	at, end := time.Date(2020, 1, 1, 0, 0, 0, 0, zone), time.Date(2060, 1, 1, 0, 0, 0, 0, zone)
	for !at.IsZero() && at.Before(end) {
		_, offset := at.Zone()
		_ = binary.Write(hash, binary.BigEndian, [2]int64{at.Unix(), int64(offset)}) // a hash takes all
		_, at = span(at)
	}
	return hex.EncodeToString(hash.Sum(nil)[:4])
}
