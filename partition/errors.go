package partition

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PublishError is the error of a Publish over several partitions some of which failed. errors.Is
// and errors.As look into the errors of all parts.
type PublishError struct {
	// Topic is the topic that was published to.
	Topic string

	// Parts has what became of each partition's messages.
	Parts []Part

	// Published are the messages that are in Redis, in the order of the call.
	Published []*message.Message

	// Failed are the other messages, in the order of the call, to be published again. Those of a
	// Part whose error wraps redisdelay.ErrMaybePublished may be in Redis or not.
	Failed []*message.Message
}

// Part is the part of a call of Publish that went to one partition, in one atomic step.
type Part struct {
	// Partition is the number of the partition, and Topic its plain topic.
	Partition int
	Topic     string

	// Messages are those of the call that belong to the partition, in the order of the call.
	Messages []*message.Message

	// Err is nil if all these messages are in Redis. Otherwise none is, unless the error wraps
	// redisdelay.ErrMaybePublished.
	Err error
}

// newPublishError returns nil if no part failed.
func newPublishError(topic string, parts []Part, places []int, messages []*message.Message) error {
	failed := map[int]bool{}
	for _, part := range parts {
		if part.Err != nil {
			failed[part.Partition] = true
		}
	}
	if len(failed) == 0 {
		return nil
	}
	e := &PublishError{Topic: topic, Parts: parts}
	for i, msg := range messages {
		if failed[places[i]] {
			e.Failed = append(e.Failed, msg)
		} else {
			e.Published = append(e.Published, msg)
		}
	}
	return e
}

func (e *PublishError) Error() string {
	errs := e.Unwrap()
	return fmt.Sprintf("publish to topic %q: %d of %d messages are not known to be published, in %d of %d partitions of the call; the first error: %v",
		e.Topic, len(e.Failed), len(e.Failed)+len(e.Published), len(errs), len(e.Parts), errs[0])
}

// Unwrap returns the errors of the parts that failed.
func (e *PublishError) Unwrap() (errs []error) {
	for _, part := range e.Parts {
		if part.Err != nil {
			errs = append(errs, part.Err)
		}
	}
	return errs
}
