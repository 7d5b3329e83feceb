// Package when reads times as people write them. The tool and the page use it wherever a time is
// taken.
package when

import (
	"fmt"
	"strings"
	"time"
)

// Forms are the forms that Parse understands, for help texts.
const Forms = `2026-11-27T09:00:00Z, "2026-11-27 09:00", "tomorrow 9:00", "mon 9:00", 9:00 or 20h`

// Direction is what a duration such as 20h means.
type Direction int

// The directions of a duration.
const (
	Past   Direction = -1 // so long ago
	Future Direction = 1  // in so long
)

var (
	dates  = []string{time.DateOnly, "2.1.2006"}
	clocks = []string{"15:04", "15:04:05", "15:04:05.000", "3pm", "3:04pm"}
)

// Parse returns a time that a person wrote, in the zone of now unless the text has another one. The
// text is RFC 3339, "now", a time of day, which is one of today, or a day with or without a time of
// day. A day is a date, today, tomorrow, yesterday or a weekday: the next one, or for Past the last
// one. Or the text is a duration such as 20h or 2d. "in 2h" and "2h ago" have their own direction.
func Parse(text string, now time.Time, toward Direction) (time.Time, error) {
	words := strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(form, strings.ToUpper(words)); err == nil {
			return t, nil
		}
	}
	if words == "now" {
		return now, nil
	}
	rest, ahead := strings.CutPrefix(words, "in ")
	rest, ago := strings.CutSuffix(rest, " ago")
	if d, err := Duration(rest); err == nil && d >= 0 && !(ahead && ago) {
		switch {
		case ahead:
			toward = Future
		case ago:
			toward = Past
		}
		return now.Add(time.Duration(toward) * d), nil
	}
	if !ahead && !ago {
		if t, ok := dated(words, now, toward); ok {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time; write it like %s", text, Forms)
}

// dated reads a day, a time of day, or both.
func dated(words string, now time.Time, toward Direction) (time.Time, bool) {
	if t, ok := clock(words, now); ok {
		return t, true
	}
	day, at, _ := strings.Cut(strings.Replace(words, "t", " ", btoi(len(words) > 10 && words[4:5] == "-" && words[10] == 't')), " ")
	start, ok := midnight(day, now, toward)
	if !ok || at == "" {
		return start, ok
	}
	return clock(at, start)
}

func btoi(is bool) int {
	if is {
		return 1
	}
	return 0
}

// midnight returns when a day begins.
func midnight(day string, now time.Time, toward Direction) (time.Time, bool) {
	begin := func(days int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+days, 0, 0, 0, 0, now.Location())
	}
	if days, ok := map[string]int{"yesterday": -1, "today": 0, "tomorrow": 1}[day]; ok {
		return begin(days), true
	}
	for i := range 7 {
		days := i + 1
		if toward == Past {
			days = -days
		}
		t := begin(days)
		if name := strings.ToLower(t.Weekday().String()); day == name || len(day) == 3 && day == name[:3] {
			return t, true
		}
	}
	for _, form := range dates {
		if t, err := time.ParseInLocation(form, day, now.Location()); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// clock returns a time of a day.
func clock(text string, day time.Time) (time.Time, bool) {
	for _, form := range clocks {
		if t, err := time.Parse(form, text); err == nil {
			return time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), day.Location()), true
		}
	}
	return time.Time{}, false
}

// Duration reads a length of time such as 90m or 1h30m. It may begin with days, such as 1d12h.
func Duration(text string) (time.Duration, error) {
	days := 0
	if n, rest, is := strings.Cut(text, "d"); is {
		if _, err := fmt.Sscanf(n+" ", "%d ", &days); err != nil || fmt.Sprint(days) != n || days < 0 || days > 100_000 {
			return 0, fmt.Errorf("%q is no length of time; write it like 30m, 2h or 3d", text)
		}
		if text = rest; rest == "" {
			text = "0s"
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no length of time; write it like 30m, 2h or 3d", text)
	}
	return d + time.Duration(days)*24*time.Hour, nil
}
