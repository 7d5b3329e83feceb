package redisdelay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// ErrInvalidMetadata is wrapped by the error for metadata that this package reads, other than a delay, and
// that is malformed. The error names key and value.
var ErrInvalidMetadata = errors.New("invalid metadata")

// CheckMetadata tells what Publish would refuse about the metadata of msg, or returns nil: for programs that
// store messages before they publish them. Errors wrap ErrInvalidDelay or ErrInvalidMetadata.
func CheckMetadata(msg *message.Message) error {
	if _, err := publishDue(msg, time.Now()); err != nil {
		return err
	}
	_, err := readOptions(msg.Metadata)
	return err
}

// readOptions reads what Redis is to know of the message besides its due time.
func readOptions(metadata message.Metadata) (o queue.Options, err error) {
	if o.MaxDeliveries, _, err = maxDeliveries(metadata); err != nil {
		return o, err
	}
	if _, _, err = ownBackoff(metadata); err != nil {
		return o, err
	}
	if err = readDelayID(metadata, &o); err != nil {
		return o, err
	}
	_, err = readExpiry(metadata)
	return o, err
}

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

// publishKeys are all keys that delay a message, or that only Redis needs. DelayedForKey is first, so that it
// is easily kept.
var publishKeys = []string{delay.DelayedForKey, DelayKey, DelayUntilKey, delay.DelayedUntilKey, DelayIDModeKey, DelayIDWindowKey}

// delayingKeys are the keys that consumers are not to see, so that a handler which publishes a message on does not delay
// it twice. A delivered message that is passed on, by a poison queue or requeuer, keeps Watermill's duration, which
// DelayOnError counts on from.
func delayingKeys(passedOn bool) []string {
	if passedOn {
		return publishKeys[1:]
	}
	return publishKeys
}

// strip returns metadata without some keys: itself if it has none of them, else a copy.
func strip(metadata message.Metadata, remove []string) message.Metadata {
	present := func(key string) bool { _, ok := metadata[key]; return ok }
	if !slices.ContainsFunc(remove, present) {
		return metadata
	}
	kept := maps.Clone(metadata)
	for _, key := range remove {
		delete(kept, key)
	}
	return kept
}

func setKey(msg *message.Message, key, value string) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	msg.Metadata[key] = value
}

// maxValueLen is far above every useful value, and what an error message repeats at most.
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

func invalidValue(sentinel error, key, value, want string) error {
	return fmt.Errorf("%w: metadata %s is %s: %s", sentinel, key, quoteClipped(value), want)
}

// quoteClipped keeps a value that may be large or binary from filling a log line.
func quoteClipped(value string) string {
	if len(value) > maxValueLen {
		return strconv.Quote(value[:maxValueLen]) + "..."
	}
	return strconv.Quote(value)
}
