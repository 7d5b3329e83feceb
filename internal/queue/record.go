package queue

import (
	"strconv"
	"strings"
)

// record is what a group knows of a message's deliveries: "count flag delayed_for reason".
type record struct {
	count      int
	flag       string // "s": a suspect; "r": it was a dead letter, and was requeued; "rs": both; "-"
	delayedFor string
	reason     string
}

func (r *record) parse(text string) {
	*r = record{}
	if text == "" {
		return
	}
	parts := strings.SplitN(text, " ", 4)
	r.count, _ = strconv.Atoi(parts[0])
	if len(parts) > 1 {
		r.flag = parts[1]
	}
	if len(parts) > 2 && parts[2] != "-" {
		r.delayedFor = parts[2]
	}
	if len(parts) > 3 {
		r.reason = parts[3]
	}
}

func (r *record) suspect() bool { return r.flag == "s" || r.flag == "rs" }

func (r *record) requeued() bool { return r.flag == "r" || r.flag == "rs" }

// delivered tells whether the message was, or may have been, delivered to the group before.
func (r *record) delivered() bool { return r.count > 0 || r.suspect() || r.requeued() }
