package queue

import (
	"regexp"
	"strconv"
	"strings"
)

// Record is what a group knows of a message's deliveries, stored as "count flag delayed_for
// reason". The third word may have "@" and the origin behind it.
type Record struct {
	Count      int
	DelayedFor string
	Reason     string
	Origin     Origin // zero unless the group keeps a history

	// "d": a delivery has ended, or may have, that does not count; "r": requeued from the dead
	// letters; "-": neither.
	flag string
}

// ReadRecord reads a stored record. "" is no record.
func ReadRecord(text string) (r Record) {
	if text == "" {
		return r
	}
	parts := strings.SplitN(text, " ", 4)
	r.Count, _ = strconv.Atoi(parts[0])
	if len(parts) > 1 {
		r.flag = parts[1]
	}
	if len(parts) > 2 {
		var origin string
		if r.DelayedFor, origin, _ = strings.Cut(parts[2], "@"); r.DelayedFor == "-" {
			r.DelayedFor = ""
		}
		r.Origin = readOrigin(origin)
	}
	if len(parts) > 3 {
		r.Reason = parts[3]
	}
	return r
}

// IsRecord tells whether a text is a stored record.
func IsRecord(text string) bool { return recordForm.MatchString(text) }

var recordForm = regexp.MustCompile(`(?s)^[0-9]{1,9} [-dr]( .*)?$`)

// ReadExpiries returns how many leases expired in a row, of an entry of suspects. "" is none.
func ReadExpiries(text string) int {
	digits, _, _ := strings.Cut(text, " ")
	n, _ := strconv.Atoi(digits)
	return max(n, 0)
}

func (r *Record) requeued() bool { return r.flag == "r" }

// Delivered tells whether the message was, or may have been, delivered to the group before.
func (r *Record) Delivered() bool { return r.Count > 0 || r.flag == "d" || r.requeued() }
