package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// destination is the Publisher that due messages go to.
type destination struct {
	message.Publisher

	// permanent returns whether an error is permanent, so that a retry cannot help.
	permanent func(error) bool

	// check returns an error if the destination cannot be reached.
	check func(ctx context.Context) error

	// single means that each message is a call of its own, so that one message fails no other.
	single bool

	// warning is logged when the relay begins; "" is none.
	warning string

	underWay atomic.Int64 // calls of the Publisher that have not returned
}

// Publish returns at the latest when the contexts of all messages have ended, because the relay
// must then give the messages back. Clients of brokers do not always respect a context. In that
// case the call goes on until the program ends.
func (d *destination) Publish(topic string, messages ...*message.Message) error {
	d.underWay.Add(1)
	ended := make(chan error, 1)
	go func() {
		err := d.publish(topic, messages)
		d.underWay.Add(-1)
		ended <- err
	}()
	var cause error
	for _, msg := range messages {
		select {
		case err := <-ended:
			return err
		case <-msg.Context().Done():
			cause = context.Cause(msg.Context())
		}
	}
	select {
	case err := <-ended: // it returned at the same moment
		return err
	default:
		return fmt.Errorf("the destination has not answered: %w", cause)
	}
}

// publish returns a panic as an error. In this goroutine it would end the program.
func (d *destination) publish(topic string, messages []*message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return d.Publisher.Publish(topic, messages...)
}

// Close closes the Publisher, unless a call still uses it.
func (d *destination) Close() error {
	if d.underWay.Load() > 0 {
		return nil
	}
	return d.Publisher.Close()
}

// errUnsendable means that the destination's protocol cannot carry the message.
var errUnsendable = errors.New("the message cannot be sent")

// errUUIDKey means that the message has the metadata key in which Watermill's Publishers send its
// UUID. One of the two values would be lost.
var errUUIDKey = fmt.Errorf("%w: metadata key _watermill_message_uuid is reserved for its UUID", errUnsendable)

// destinationKind is a value of --to. open does not wait for a connection, because the relay
// retries while a broker is down.
type destinationKind interface {
	open(batch int, logger *slog.Logger) (*destination, error)
}
