package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// problem is something that is wrong with a topic, and where it can be mended.
type problem struct {
	Severity     string // "critical", "warning" or "notice"
	Topic, Group string
	Text         string
	Address      string // "": nowhere
	Action       string // text of the link
}

var severities = []string{"critical", "warning", "notice"}

// late is from when on a topic counts as late.
const late = time.Minute

// problems returns what is wrong with a topic, as far as its Stats tell, worst first.
func (d *Dashboard) problems(s admin.Stats) (found []problem) {
	add := func(severity, group, action, address, format string, args ...any) {
		found = append(found, problem{severity, s.Topic, group, fmt.Sprintf(format, args...), address, action})
	}
	here := d.address("/topic", "t", s.Topic)
	if s.Err != nil {
		add("critical", "", "Look", here, "It cannot be read: %v.", s.Err)
		return found
	}
	due := !s.NextDue.IsZero() && s.Now.Sub(s.NextDue) > 5*time.Second
	if !s.Scheduled && (due || s.Pending > 0) {
		add("critical", "", "Look", here, "Nobody makes its messages ready when they are due. Is a program with a Subscriber or a scheduler running?")
	}
	if p := s.Pause; p != nil {
		add("warning", "", "Look", here, "Paused %s.", paused(s.Now, *p))
	}
	for _, g := range s.Groups {
		if g.Pause != nil {
			add("warning", g.Group, "Look", here, "Paused %s.", paused(s.Now, *g.Pause))
		}
		waits := s.Now.Sub(g.OldestDue)
		switch {
		case g.OldestDue.IsZero() || s.Pause != nil || g.Pause != nil:
		case !g.Subscribed && waits > late:
			add("warning", g.Group, "Look", here, "Nobody reads it: %s wait, the first for %s.", plural(g.Ready, "message"), duration(waits))
		case waits > late:
			add("warning", g.Group, "Look", here, "Late: the next message has been ready for %s. Consumers are too slow, or stuck.", duration(waits))
		}
		if g.Suspects > 0 {
			add("warning", g.Group, "In hand", d.address("/messages", "t", s.Topic, "g", g.Group, "state", string(admin.InHand)),
				"%s may crash or freeze the programs that handle them.", plural(g.Suspects, "message"))
		}
		if g.Dead > 0 {
			add("notice", g.Group, "Reasons", d.address("/dead", "t", s.Topic, "g", g.Group), "%s.", plural(g.Dead, "dead letter"))
		}
	}
	sortProblems(found)
	return found
}

func sortProblems(found []problem) {
	slices.SortStableFunc(found, func(a, b problem) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
}

// paused says since when, by whom, why and until when something is paused.
func paused(now time.Time, p admin.Pause) string {
	text := "for " + duration(now.Sub(p.Since))
	if p.By != "" {
		text += " by " + p.By
	}
	if !p.Until.IsZero() {
		text += ", until " + duration(p.Until.Sub(now)) + " from now"
	}
	if p.Why != "" {
		text += ": " + strings.TrimRight(p.Why, ".")
	}
	return text
}
