package meta

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Backoff says how long a message waits before its next delivery, after one that failed. The zero
// value is that of a message which leaves this to the subscriber.
type Backoff struct {
	kind        backoffKind
	first, last time.Duration // the wait after the first delivery, and the longest wait
}

type backoffKind int

const (
	unset       backoffKind = iota
	fixed                   // always first
	exponential             // doubled after each delivery, and spread
)

// Exponential returns a Backoff of about first after the first delivery, twice as long after each
// further one, and about last at most.
func Exponential(first, last time.Duration) Backoff { return Backoff{exponential, first, last} }

// ReadBackoff reads BackoffKey.
func ReadBackoff(metadata message.Metadata) (Backoff, error) {
	value, set := metadata[BackoffKey]
	if !set {
		return Backoff{}, nil
	}
	firstText, lastText, doubles := strings.Cut(value, "..")
	first, ok := parseDuration(firstText)
	b := Backoff{fixed, first, first}
	if doubles && ok {
		b.kind = exponential
		b.last, ok = parseDuration(lastText)
	}
	if !ok || b.first < 0 || b.last < b.first || b.last > MaxDelay {
		return Backoff{}, invalid(ErrInvalidMetadata, BackoffKey, value, wantBackoff)
	}
	return b, nil
}

// IsSet tells whether the message has a Backoff of its own.
func (b Backoff) IsSet() bool { return b.kind != unset }

// Wait returns how long the message waits after its n-th delivery. Exponential waits are spread by
// a fifth either way, so that messages which failed together are not retried together.
func (b Backoff) Wait(delivery int) time.Duration {
	if b.kind != exponential || b.first <= 0 {
		return max(b.first, 0)
	}
	wait := min(float64(b.first)*math.Pow(2, float64(delivery-1)), float64(b.last))
	return time.Duration(min(wait*(0.8+0.4*rand.Float64()), float64(MaxDelay)))
}
