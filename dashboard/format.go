package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// functions are what the templates call.
func (d *Dashboard) functions() template.FuncMap {
	return template.FuncMap{
		"asset":   d.assetAddress,
		"to":      d.address,
		"escaped": url.QueryEscape, // call.q reads it
		"num":     texts.Number,
		"dur":     duration,
		"past":    func(now, t time.Time) moment { return momentOf(now, t) },
		"exact":   func(t time.Time) moment { return moment{At: t, Exact: true} },
		"plural":  texts.Many,
		"within":  within,
		"bytes":   texts.Bytes,
		"rate":    rate,
		"groups":  groupsNamed,
	}
}

// groupsNamed names groups.
func groupsNamed(all []string) string {
	if len(all) == 1 {
		return "group " + texts.Names(all)
	}
	return "groups " + texts.Names(all)
}

// duration returns a duration in its two largest units, such as "3 min 20 s".
func duration(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Millisecond:
		return "0 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return strconv.FormatFloat(math.Trunc(d.Seconds()*10)/10, 'f', -1, 64) + " s"
	}
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.of {
			continue
		}
		text := fmt.Sprintf("%d %s", d/u.of, u.name)
		if i+1 < len(units) && d/u.of < 10 {
			if rest := d % u.of / units[i+1].of; rest > 0 {
				text += fmt.Sprintf(" %d %s", rest, units[i+1].name)
			}
		}
		return text
	}
	return "0 s"
}

// milliseconds returns a number of milliseconds as a short duration.
func milliseconds(ms float64) string {
	return duration(time.Duration(ms * float64(time.Millisecond)))
}

// within returns how late 99 % of the deliveries were at most.
func within(l admin.Lateness) string {
	switch q := l.Quantile(0.99); {
	case l.Count() == 0:
		return "–"
	case q > longestLate:
		return "over " + duration(longestLate)
	default:
		return duration(q)
	}
}

// rate returns a number a second in words.
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0/s"
	case perSecond < 1:
		return strconv.FormatFloat(perSecond*60, 'f', 1, 64) + "/min"
	case perSecond < 100:
		return strconv.FormatFloat(perSecond, 'f', 1, 64) + "/s"
	default:
		return texts.Number(int(perSecond)) + "/s"
	}
}

// moment is an instant. The page shows it in the browser's zone: Words are relative to now, and the
// exact instant appears on hover; or else the instant is shown itself.
type moment struct {
	At    time.Time
	Words string
	Exact bool
}

func momentOf(now, t time.Time) moment {
	words := ""
	switch d := now.Sub(t); {
	case t.IsZero():
	case d.Abs() < time.Second:
		words = "just now"
	case d > 0:
		words = duration(d.Truncate(time.Second)) + " ago"
	default:
		words = "in " + duration((-d).Truncate(time.Second))
	}
	return moment{At: t, Words: words}
}

// ISO returns the instant for machines.
func (m moment) ISO() string { return m.At.UTC().Format("2006-01-02T15:04:05.000Z") }

// UTC returns the instant for people whose browser runs no scripts.
func (m moment) UTC() string { return m.At.UTC().Format("2 Jan 2006 15:04:05.000 UTC") }
