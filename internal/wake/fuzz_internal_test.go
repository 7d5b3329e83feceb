package wake

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Anybody may publish on a mailbox's channel.
func FuzzWakeUps(f *testing.F) {
	for _, payload := range []string{"", "*", "* ", "* channel", "1", "1 500", "1  x", "2", " 1", "**", "1\n"} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		var woken []string
		m := &Mailbox{receivers: map[string]*Receiver{"1": {wake: func(argument string, _ func(time.Time)) {
			woken = append(woken, argument)
		}}}}
		m.deliver(payload)
		var want []string
		switch receiver, argument, _ := strings.Cut(payload, " "); receiver {
		case "1":
			want = []string{argument}
		case "*":
			want = []string{""}
		}
		if !slices.Equal(woken, want) {
			t.Errorf("%q wakes with %q", payload, woken)
		}
	})
}

func FuzzWaits(f *testing.F) {
	for _, argument := range []string{"", "21", "21.305", "0", "-1", "0.0004", "1e300", "nan", "inf", "21 5", "0x1p4"} {
		f.Add(argument)
	}
	f.Fuzz(func(t *testing.T, argument string) {
		wait := ReadWait(argument)
		if wait < 0 || wait > longestWait*time.Millisecond {
			t.Errorf("%q is read as %v", argument, wait)
		}
		// Decades are precise to less than a microsecond.
		if ms, err := strconv.ParseUint(argument, 10, 40); err == nil && (wait-time.Duration(ms)*time.Millisecond).Abs() >= time.Microsecond {
			t.Errorf("%q is read as %v", argument, wait)
		}
	})
}
