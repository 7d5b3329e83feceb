package faults

import (
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestClientsClocksAreOff(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "the clocks of all clients an hour off the server's: nothing is early, late, lost or leased twice")
			server := redistest.StartWithClock(t)
			server.SetClock(offset)
			l := newLoad(t, server, faulttest.Place{})
			l.progress(t, faulttest.Pick(150, 3000))
			l.w.Verify(loadRules)
		})
	}
}

func TestServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "the server's clock set back by 30 s under load, and forward again: what waits comes later, nothing is early, lost or leased twice")
	server := redistest.StartWithClock(t)
	l := newLoad(t, server, faulttest.Place{})
	for range faulttest.Pick(1, 10) {
		for _, offset := range []time.Duration{-30 * time.Second, 0} {
			l.progress(t, 40)
			l.w.Note(faulttest.Event{Kind: faulttest.Stepped})
			server.SetClock(offset)
			l.w.Note(faulttest.Event{Kind: faulttest.Stepped})
		}
	}
	l.progress(t, 40)
	rules := loadRules
	rules.ClockSteps = true
	l.w.Verify(rules)
}
