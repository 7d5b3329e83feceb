package redisdelay

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Whatever metadata says, it is read or refused, and what is refused is named.
func FuzzMetadata(f *testing.F) {
	for _, values := range [][8]string{
		{}, {"3", "1s..10m", "order 1", "keep", "1h", "2026-03-04T12:00:00Z", "5m", "drop"},
		{"0", "10m..1s", "", "x", "-1s", "tomorrow", "0s", "never"}, {"-5", "1s..", "\x00", "reject", "", "", "-1ns", "dead"},
		{"99999999999999999999", "..", "%", "replace", "9999999h", "0001-01-01T00:00:00Z", "9999999h", "deliver"},
	} {
		f.Add(uint8(0xff), values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7])
		f.Add(uint8(0x7e), values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7])
	}
	keys := []string{MaxDeliveriesKey, BackoffKey, DelayIDKey, DelayIDModeKey, DelayIDWindowKey, ExpiresAtKey, MaxLatenessKey, OnExpiryKey}
	f.Fuzz(func(t *testing.T, has uint8, a, b, c, d, e, g, h, i string) {
		metadata := message.Metadata{}
		for n, value := range []string{a, b, c, d, e, g, h, i} {
			if has&(1<<n) != 0 {
				metadata[keys[n]] = value
			}
		}
		options, err := readOptions(metadata)
		if err != nil {
			if !errors.Is(err, ErrInvalidMetadata) && !errors.Is(err, ErrInvalidDelay) || len(err.Error()) > 2000 {
				t.Errorf("%q: %v", metadata, err)
			}
			return
		}
		if options.Window < 0 || options.DelayID == "" && (options.Window != 0 || options.Mode != "") {
			t.Errorf("%q is read as %+v", metadata, options)
		}
		expiry, err := readExpiry(metadata)
		if from := expiry.from(time.UnixMilli(1)); err != nil || from.Before(time.Time{}) && !from.Equal(expiry.at) { // the year 0
			t.Errorf("%q: %+v, %v", metadata, expiry, err)
		}
		if backoff, set, _ := ownBackoff(metadata); set {
			for _, delivery := range []int{-1, 0, 1, 2, 64, math.MaxInt} {
				if wait := backoff(delivery); wait < 0 || wait > MaxDelay {
					t.Errorf("%q: wait %v after delivery %d", metadata[BackoffKey], wait, delivery)
				}
			}
		}
	})
}

func FuzzRetryDue(f *testing.F) {
	f.Add(uint8(1), "1s", "", "", "")
	f.Add(uint8(15), "1s", "2026-03-04T12:00:00Z", "2026-03-04T12:00:00Z", "1s")
	f.Add(uint8(12), "", "", "2026-03-04T12:00:00Z", "-1s")
	f.Fuzz(func(t *testing.T, has uint8, own, ownUntil, wmUntil, wmFor string) {
		metadata := message.Metadata{}
		for i, value := range []string{own, ownUntil, wmUntil, wmFor} {
			if has&(1<<i) != 0 {
				metadata[[]string{DelayKey, DelayUntilKey, "_watermill_delayed_until", "_watermill_delayed_for"}[i]] = value
			}
		}
		_, _, err := retryDue(metadata, time.UnixMilli(1_772_625_600_000))
		if err != nil && (!errors.Is(err, ErrInvalidDelay) || len(err.Error()) > 2000) {
			t.Errorf("%q: %v", metadata, err)
		}
		if left := strip(metadata, delayingKeys(false)); left[DelayKey]+left[DelayUntilKey] != "" {
			t.Errorf("%q is left as %q", metadata, left)
		}
	})
}
