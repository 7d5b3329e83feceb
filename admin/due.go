package admin

import (
	"fmt"
	"strings"
	"time"
)

// DueText returns when a message is due that waits or retries, for the Detail of an Act, so that an
// operator can go back: "due was 2026-11-28T10:00:00Z". Of a message that retries it names each
// group. It returns "" for a message in other states.
func (m Message) DueText() string {
	var times []string
	for _, p := range m.Places {
		at := p.At.UTC().Format("2006-01-02T15:04:05.999Z07:00")
		switch {
		case p.At.IsZero() || p.At.Equal(time.UnixMilli(0)):
		case p.State == Waiting:
			return "due was " + at
		case p.State == Retrying:
			times = append(times, fmt.Sprintf("%s in group %q", at, p.Group))
		}
	}
	if len(times) == 0 {
		return ""
	}
	return "due was " + strings.Join(times, ", ")
}
