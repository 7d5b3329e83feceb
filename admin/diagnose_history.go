package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// histories adds a notice for each history of a topic that lost lines in the last day.
func (d *doctor) histories(f found) {
	add := func(group, of string, counter func(field string) int) {
		n, at := counter("history_failed"), time.UnixMilli(int64(counter("history_failed_at")))
		if n == 0 || f.stats.Now.Sub(at) >= recent {
			return
		}
		d.add(Notice, LostHistory, Problem{Topic: f.name, Group: group, weight: n, Text: fmt.Sprintf(
			"%s of the history of %s could not be written or bounded, the last %s ago: a Redis user lacks one of +%s.",
			texts.Many(n, "line"), of, round(f.stats.Now.Sub(at)), strings.ToLower(strings.Join(queue.Recording, " +")))})
	}
	add("", fmt.Sprintf("topic %q", f.name), f.counts.Counter)
	for _, g := range f.counts.Groups {
		add(g.Name, fmt.Sprintf("group %q of topic %q", g.Name, f.name), g.Counter)
	}
}
