package meta

import (
	"errors"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Any metadata is read or refused by name. A delivery reads the same from it as Publish, and
// ignores a wrong value.
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
		before := maps.Clone(metadata)
		spec, err := Read(&message.Message{Metadata: metadata}, delayNow)
		require.Equal(t, before, metadata, "Read has changed it")
		if err != nil {
			if !errors.Is(err, ErrInvalidMetadata) || len(err.Error()) > 2000 {
				t.Errorf("%q: %v", metadata, err)
			}
			require.Zero(t, spec)
		}
		requireSound(t, spec, metadata)

		taken := Take(metadata)
		requireSound(t, taken, before)
		require.Equal(t, Without(before, slices.Concat(expiryKeys, []string{DelayIDKey})), metadata)
		if err == nil { // Take does not read settings that are only for Redis
			spec.Name.Mode, spec.Name.Window = "", 0
			require.Equal(t, spec, taken)
		}
	})
}

// requireSound requires that a Spec has only values that may be there, whether the metadata was
// refused or not.
func requireSound(t *testing.T, s Spec, metadata message.Metadata) {
	t.Helper()
	require.Zero(t, s.Due)
	if s.Name.Window < 0 || s.Name.ID == "" && (s.Name.Window != 0 || s.Name.Mode != "") {
		t.Errorf("%q is read as %+v", metadata, s)
	}
	require.True(t, s.Limit >= -1 && s.Limit <= math.MaxInt32)
	if s.Expiry.At.IsZero() && s.Expiry.Lateness == 0 && !s.Expiry.From(time.UnixMilli(1)).IsZero() {
		t.Errorf("%q expires: %+v", metadata, s.Expiry)
	}
	if from := s.Expiry.From(time.UnixMilli(1)); from.Before(time.Time{}) && !from.Equal(s.Expiry.At) {
		t.Errorf("%q: %+v", metadata, s.Expiry)
	}
	for _, delivery := range []int{-1, 0, 1, 2, 64, math.MaxInt} {
		if wait := s.Backoff.Wait(delivery); wait < 0 || wait > MaxDelay {
			t.Errorf("%q: wait %v after delivery %d", metadata[BackoffKey], wait, delivery)
		}
	}
}
