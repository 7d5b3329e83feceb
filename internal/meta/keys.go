package meta

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
)

// The metadata keys that have a meaning, besides the two of Watermill's components/delay. The root
// package exports them and documents them.
const (
	DelayKey         = "delay"
	DelayUntilKey    = "delay_until"
	DelayIDKey       = "delay_id"
	DelayIDModeKey   = "delay_id_mode"
	DelayIDWindowKey = "delay_id_window"
	MaxDeliveriesKey = "max_deliveries"
	BackoffKey       = "backoff"
	ExpiresAtKey     = "expires_at"
	MaxLatenessKey   = "max_lateness"
	OnExpiryKey      = "on_expiry"
)

// Values of DelayIDModeKey.
const (
	Replace = "replace"
	Keep    = "keep"
	Reject  = "reject"
)

// Values of OnExpiryKey.
const (
	Deliver = "deliver"
	Drop    = "drop"
	Dead    = "dead"
)

const (
	// MaxDelay is the longest delay.
	MaxDelay = 100 * 365 * 24 * time.Hour

	// MaxDelayIDLength is the longest delay ID, in bytes.
	MaxDelayIDLength = 512
)

// plain tells whether the metadata has none of the keys that have a meaning.
func plain(metadata message.Metadata) bool {
	for key := range metadata {
		if Known(key) {
			return false
		}
	}
	return true
}

// Known tells whether a key of metadata has a meaning.
func Known(key string) bool {
	switch key {
	case DelayKey, DelayUntilKey, delay.DelayedForKey, delay.DelayedUntilKey,
		DelayIDKey, DelayIDModeKey, DelayIDWindowKey,
		MaxDeliveriesKey, BackoffKey,
		ExpiresAtKey, MaxLatenessKey, OnExpiryKey:
		return true
	}
	return false
}

// byLength has the keys that have a meaning, by their lengths.
var byLength = func() (keys [32][]string) {
	for _, key := range slices.Concat(streamKeys, []string{MaxDeliveriesKey, BackoffKey}) {
		keys[len(key)] = append(keys[len(key)], key)
	}
	return keys
}()

// Meant returns the key from which a key differs only in case, and which has a meaning. It returns
// "" if there is none. Few keys have the length of such a key, so most cost one comparison.
func Meant(key string) string {
	if len(key) >= len(byLength) {
		return ""
	}
	for _, other := range byLength[len(key)] {
		if key != other && strings.EqualFold(key, other) {
			return other
		}
	}
	return ""
}

var (
	// delayingKeys delay a message or concern only Redis. DelayedForKey is first, so that a slice
	// leaves it out.
	delayingKeys = []string{
		delay.DelayedForKey, DelayKey, DelayUntilKey, delay.DelayedUntilKey, DelayIDModeKey, DelayIDWindowKey,
	}
	expiryKeys = []string{ExpiresAtKey, MaxLatenessKey, OnExpiryKey}
	streamKeys = slices.Concat(delayingKeys, expiryKeys, []string{DelayIDKey})
)

// NotStored returns the keys that are not stored with a message, so that a handler which publishes
// the message again does not delay it twice. A message in a stream has fewer keys, because nobody
// takes them off there. A message that was delivered before keeps DelayedForKey, because
// Watermill's DelayOnError multiplies that duration.
func NotStored(stream, deliveredBefore bool) []string {
	keys := delayingKeys
	if stream {
		keys = streamKeys
	}
	if deliveredBefore {
		return keys[1:]
	}
	return keys
}

// Without returns metadata without some keys: itself if it has none of them, else a copy.
func Without(metadata message.Metadata, keys []string) message.Metadata {
	present := func(key string) bool { _, ok := metadata[key]; return ok }
	if !slices.ContainsFunc(keys, present) {
		return metadata
	}
	kept := maps.Clone(metadata)
	for _, key := range keys {
		delete(kept, key)
	}
	return kept
}
