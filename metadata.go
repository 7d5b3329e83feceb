package redisdelay

import (
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
)

// isPlain tells whether no key of the metadata has a meaning to Publish or to a Subscriber, as is so with most messages.
// To look once through the few that are there takes less time than to look for each that might be.
func isPlain(metadata message.Metadata) bool {
	for key := range metadata {
		switch key {
		case DelayKey, DelayUntilKey, delay.DelayedForKey, delay.DelayedUntilKey,
			DelayIDKey, DelayIDModeKey, DelayIDWindowKey,
			MaxDeliveriesKey, BackoffKey,
			ExpiresAtKey, MaxLatenessKey, OnExpiryKey:
			return false
		}
	}
	return true
}
