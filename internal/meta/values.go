package meta

import (
	"fmt"
	"strconv"
	"time"
)

// The end of the error for a wrong value.
const (
	wantDelay         = `want a duration from "0s" to "876000h" (100 years), such as "15m" or "250ms"`
	wantDelayUntil    = `want an RFC 3339 time from the year 2000 to 100 years ahead, such as "2006-01-02T15:04:05Z"`
	wantDelayedFor    = `want a duration, such as "15m0s"`
	wantDelayID       = `want a text of 1 to 512 bytes`
	wantDelayIDMode   = `want "replace", "keep" or "reject", and a delay_id`
	wantWindow        = `want a duration from "0s" to "876000h" (100 years), and a delay_id`
	wantMaxDeliveries = `want an integer from 1 to 2147483647, or a negative one for no limit`
	wantBackoff       = `want a duration, such as "30s", or two that do not fall, such as "1s..10m", up to "876000h" (100 years)`
	wantExpiresAt     = `want an RFC 3339 time, such as "2006-01-02T15:04:05Z"`
	wantMaxLateness   = `want a duration from "1ms" to "876000h" (100 years)`
	wantOnExpiry      = `want "deliver", "drop" or "dead", and expires_at or max_lateness`
)

// maxValueLen is the longest value that is parsed, and the longest part of a value that an error
// repeats. It is far above every useful value.
const maxValueLen = 64

func parseDuration(value string) (time.Duration, bool) {
	if len(value) > maxValueLen {
		return 0, false
	}
	d, err := time.ParseDuration(value)
	return d, err == nil
}

func parseTime(value string) (time.Time, bool) {
	if len(value) > maxValueLen {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339, value) // takes a fraction of a second too
	return t, err == nil
}

func invalid(sentinel error, key, value, want string) error {
	return fmt.Errorf("%w: metadata %s is %s: %s", sentinel, key, quoteClipped(value), want)
}

// quoteClipped keeps a value that may be large or binary from filling a log line.
func quoteClipped(value string) string {
	if len(value) > maxValueLen {
		return strconv.Quote(value[:maxValueLen]) + "..."
	}
	return strconv.Quote(value)
}
