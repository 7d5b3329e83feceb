package redisdelay

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrMalformed means that the bytes are not a message in the form that the Unmarshaler reads.
var ErrMalformed = errors.New("malformed message")

// Marshaler turns a message into the bytes that Redis stores.
//
// The bytes must hold the message's UUID, metadata and payload, but not its context or ack state.
// Marshal must not change the message or keep a reference to it. It is called concurrently.
type Marshaler interface {
	Marshal(topic string, msg *message.Message) ([]byte, error)
}

// Unmarshaler turns the bytes from Redis back into a message.
//
// Unmarshal owns data: the message may keep parts of it. A message that was not made by
// message.NewMessage is replaced by one with the same UUID, metadata and payload, because it could
// not be acked. Errors for bytes in another form should wrap
// ErrMalformed. Unmarshal is called concurrently.
type Unmarshaler interface {
	Unmarshal(topic string, data []byte) (*message.Message, error)
}

// MarshalerUnmarshaler writes and reads one form.
type MarshalerUnmarshaler interface {
	Marshaler
	Unmarshaler
}
