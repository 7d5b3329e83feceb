package redisdelay

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

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

// optionKeys are the keys that only Redis needs.
var optionKeys = []string{DelayIDModeKey, DelayIDWindowKey}

// SetMaxDeliveries says after how many failed deliveries msg is dead-lettered, instead of the subscriber's
// MaxDeliveries; a negative n is no limit. Publish refuses 0 and what is above 2147483647. A lease that runs out for the
// first time is no failed delivery, so 1 is not at most once.
func SetMaxDeliveries(msg *message.Message, n int) {
	setKey(msg, MaxDeliveriesKey, strconv.Itoa(n))
}
