//go:build !linux

package scheduler

import "time"

// alarm waits as exactly as the runtime's timers, which are exact enough where the poller counts in less than milliseconds.
type alarm struct{}

func (*alarm) wait(d time.Duration) { time.Sleep(d) }

func (*alarm) close() {}
