package redisdelay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
)

// Postpone has the next Nack of msg bring it again after d, and use up no delivery. It is for
// handlers that find that it is too soon for msg, and not that msg has failed. A router nacks when
// they return an error: see PostponeOnError.
//
// The delay d comes before all else that says how long a nacked message waits. It must be positive
// and at most MaxDelay; it is rounded up to the millisecond. At the next delivery, Delivery.Number
// is the same and Delivery.Redelivered is true. Nothing limits how often a message is postponed,
// but its expiry (ExpiresAtKey) ends it. An Ack settles msg as ever.
//
// Errors wrap ErrInvalidDelay or ErrNotDelivered, and then the Nack does what it does without
// Postpone. It is safe for concurrent use. The last call of Postpone or DeadOnNack before the Nack
// counts.
func Postpone(msg *message.Message, d time.Duration) error {
	if d <= 0 || d > MaxDelay {
		return fmt.Errorf("%w: postponed by %v: want more than 0 and at most %v", ErrInvalidDelay, d, MaxDelay)
	}
	delivery := consume.Of(msg)
	if delivery == nil {
		return fmt.Errorf("%w: message with UUID %.64q cannot be postponed", ErrNotDelivered, msg.UUID)
	}
	delivery.Postpone(d)
	return nil
}

// PostponeError is what a handler returns to have its message postponed, with the middleware
// PostponeOnError.
type PostponeError struct {
	// Delay is how long the message waits, as in Postpone.
	Delay time.Duration

	// Err is why, or nil.
	Err error
}

// Error returns the delay, and why.
func (e *PostponeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("postponed by %v", e.Delay)
	}
	return fmt.Sprintf("postponed by %v: %v", e.Delay, e.Err)
}

// Unwrap returns Err.
func (e *PostponeError) Unwrap() error { return e.Err }

// PostponeOnError is a middleware that calls Postpone for a message whose handler returns an error
// that wraps a *PostponeError.
//
//	router.AddMiddleware(redisdelay.PostponeOnError)
//
// It returns the results of the handler unchanged, so that the router nacks the message. If
// Postpone fails, its error is joined to that of the handler, and the nack counts as ever. To
// Watermill's Retry, PoisonQueue and CircuitBreaker it is an error like any other. Except it by
// Retry.ShouldRetry, PoisonQueueWithFilter and the breaker's IsSuccessful.
func PostponeOnError(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if d := consume.Of(msg); d != nil {
			d.TakeBackPostpone() // of an earlier try, by Watermill's Retry for instance
		}
		produced, err := h(msg)
		var postponed *PostponeError
		if errors.As(err, &postponed) {
			if refused := Postpone(msg, postponed.Delay); refused != nil {
				err = errors.Join(err, refused)
			}
		}
		return produced, err
	}
}
