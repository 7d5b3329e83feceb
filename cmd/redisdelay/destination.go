package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// destination is where messages go.
type destination struct {
	message.Publisher

	// permanent tells which of its errors no further try can help.
	permanent func(error) bool

	// check asks whether it is there.
	check func(ctx context.Context) error

	underWay atomic.Int64 // calls of the Publisher that have not returned
}

// Publish returns when the contexts of all messages have ended, at the latest: what is in hand has to be given back before
// the program ends, and brokers' clients do not heed a context everywhere. A call that is left behind ends with the program.
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
	case err := <-ended: // just now
		return err
	default:
		return fmt.Errorf("it has not answered: %w", cause)
	}
}

// publish has a panic returned, which would end the program here, and not only the call.
func (d *destination) publish(topic string, messages []*message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return d.Publisher.Publish(topic, messages...)
}

// Close closes the Publisher, unless a call that was left behind still has it.
func (d *destination) Close() error {
	if d.underWay.Load() > 0 {
		return nil
	}
	return d.Publisher.Close()
}

// errUnsendable is wrapped by errors about messages that the destination's protocol has no room for.
var errUnsendable = errors.New("the message cannot be sent")

// errUUIDKey is about a message with a metadata key that Watermill's Publishers have for its UUID: one of the two would be lost.
var errUUIDKey = fmt.Errorf("%w: metadata key _watermill_message_uuid is where its UUID goes", errUnsendable)

// destinationKind is what --to can name. It is opened without waiting for a connection: the relay waits, and tries
// again, where a broker is down.
type destinationKind interface {
	open(batch int, logger *slog.Logger) (*destination, error)
}
