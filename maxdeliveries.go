package redisdelay

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// MaxDeliveriesKey is the metadata key that sets, for one message, how often it is delivered
// before it is dead-lettered, instead of the subscriber's MaxDeliveries. The value is a decimal
// integer from 1 to 2147483647; a negative one means no limit. See SetMaxDeliveries.
const MaxDeliveriesKey = "max_deliveries"

const wantMaxDeliveries = `want an integer from 1 to 2147483647, or a negative one for no limit`

// SetMaxDeliveries says after how many failed deliveries msg is dead-lettered, instead of the subscriber's
// MaxDeliveries; a negative n is no limit. Publish refuses 0 and what is above 2147483647. A lease that runs out for the
// first time is no failed delivery, so 1 is not at most once.
func SetMaxDeliveries(msg *message.Message, n int) {
	setKey(msg, MaxDeliveriesKey, strconv.Itoa(n))
}

// maxDeliveries reads MaxDeliveriesKey; n is -1 for no limit, set is false if the key is not there.
func maxDeliveries(metadata message.Metadata) (n int, set bool, err error) {
	value, set := metadata[MaxDeliveriesKey]
	if !set {
		return 0, false, nil
	}
	// 32 bits, so that the number is the same on every machine and exact in Lua.
	limit, err := strconv.ParseInt(value, 10, 32)
	if err != nil || limit == 0 || len(value) > maxValueLen {
		return 0, true, invalidValue(ErrInvalidMetadata, MaxDeliveriesKey, value, wantMaxDeliveries)
	}
	return int(max(limit, -1)), true, nil
}
