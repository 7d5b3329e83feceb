package main

import (
	"context"
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

// destinationKind is what --to can name. It is opened without waiting for a connection: the relay waits, and tries
// again, where a broker is down.
type destinationKind interface {
	open(batch int, logger *slog.Logger) (*destination, error)
}
