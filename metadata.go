package redisdelay

import (
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
)

// isPlain tells whether the metadata says nothing of when and how the message is to be delivered, as with most. To
// look once through the few keys that are there takes less time than to look for each that might be.
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
