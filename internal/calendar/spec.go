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

// descriptors are the names of common specs.
var descriptors = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// fields are the fields of a spec, the optional one first, with the parser of each.
var fields = []struct {
	name   string
	parser cron.Parser
}{
	{"second", cron.NewParser(cron.Second)}, {"minute", cron.NewParser(cron.Minute)}, {"hour", cron.NewParser(cron.Hour)},
	{"day of month", cron.NewParser(cron.Dom)}, {"month", cron.NewParser(cron.Month)}, {"day of week", cron.NewParser(cron.Dow)},
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
	parts[5] = sunday(parts[5])
	var faults []error
	for i, field := range fields {
		if _, err := field.parser.Parse(parts[i]); err != nil {
			faults = append(faults, fmt.Errorf("%s %q: %w", field.name, parts[i], err))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
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
	step, err := time.ParseDuration(strings.TrimSpace(duration))
	if err != nil {
		return nil, fmt.Errorf("%q is no duration, such as \"90m\"", duration)
	}
	if step < time.Second || step%time.Millisecond != 0 {
		return nil, fmt.Errorf("the duration %v is not at least a second and in whole milliseconds", step)
	}
	if anchored {
		if anchor, err = time.Parse(time.RFC3339Nano, strings.TrimSpace(from)); err != nil {
			return nil, fmt.Errorf("%q is no instant in RFC 3339, such as \"2026-01-01T06:00:00+01:00\"", from)
		}
	} else if anchor.IsZero() {
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
