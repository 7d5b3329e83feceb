package periodic

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Metadata keys of the messages of occurrences.
const (
	// ScheduleKey, "schedule", is the metadata key of the schedule's name.
	ScheduleKey = "schedule"

	// OccurrenceKey, "schedule_occurrence", is the metadata key of the instant of the occurrence,
	// in RFC 3339.
	OccurrenceKey = "schedule_occurrence"

	// PreviousKey, "schedule_previous", is the metadata key of the instant of the occurrence
	// before, in RFC 3339. It is missing if there was none.
	PreviousKey = "schedule_previous"
)

// Occurrence is one time at which a schedule publishes a message.
type Occurrence struct {
	// Schedule and Topic are those of the Schedule.
	Schedule, Topic string

	// At is the instant by the Spec, in the Location of the schedule. In a handler it is in UTC. Of
	// an occurrence that an operator asked for, it is when that was.
	At time.Time

	// Previous is the instant of the last occurrence that was published before this one. It is zero
	// if there was none since the schedule began, was resumed, or got another definition.
	Previous time.Time
}

// ID returns the delay ID of the occurrence: the name of the schedule, "@", and the instant in
// milliseconds of the Unix epoch. admin.ByDelayID takes it, to cancel one occurrence.
func (o Occurrence) ID() string { return queue.OccurrenceID(o.Schedule, o.At) }

// FromMessage returns the Occurrence that a delivered message is for. ok is false if it is for
// none.
func FromMessage(msg *message.Message) (o Occurrence, ok bool) {
	o.Schedule = msg.Metadata[ScheduleKey]
	var err error
	if o.At, err = time.Parse(time.RFC3339Nano, msg.Metadata[OccurrenceKey]); err != nil || o.Schedule == "" {
		return Occurrence{}, false
	}
	o.Previous, _ = time.Parse(time.RFC3339Nano, msg.Metadata[PreviousKey])
	o.Topic = message.SubscribeTopicFromCtx(msg.Context())
	if d, ok := redisdelay.DeliveryFromContext(msg.Context()); ok {
		o.Topic = d.Topic
	}
	return o, true
}

// stamp returns a copy of a message that is due at an instant, as an occurrence.
func (o Occurrence) stamp(msg *message.Message, due time.Time) *message.Message {
	stamped := message.NewMessage(msg.UUID, msg.Payload)
	if stamped.UUID == "" {
		stamped.UUID = watermill.NewUUID()
	}
	for key, value := range msg.Metadata {
		stamped.Metadata[key] = value
	}
	stamped.Metadata[ScheduleKey] = o.Schedule
	stamped.Metadata[OccurrenceKey] = o.At.UTC().Format(time.RFC3339Nano)
	if !o.Previous.IsZero() {
		stamped.Metadata[PreviousKey] = o.Previous.UTC().Format(time.RFC3339Nano)
	}
	redisdelay.DelayUntil(stamped, due)
	redisdelay.SetDelayID(stamped, o.ID(), redisdelay.DelayIDReplace)
	return stamped
}
