package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
)

// destination is where messages go.
type destination struct {
	message.Publisher

	// permanent tells which of its errors no further try can help.
	permanent func(error) bool

	// check asks whether it is there.
	check func(ctx context.Context) error
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
