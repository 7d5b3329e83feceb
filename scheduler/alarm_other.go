//go:build !linux

package scheduler

import "time"

// alarm waits with the runtime's timers. They are exact enough here, because the poller of these
// systems counts in units smaller than a millisecond.
type alarm struct{}

func (*alarm) wait(d time.Duration) { time.Sleep(d) }

func (*alarm) close() {}
