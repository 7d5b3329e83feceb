package redisdelay

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrMalformed is wrapped by Unmarshal's error when the bytes are not a message in the form
// that the Unmarshaler reads.
var ErrMalformed = errors.New("malformed message")

// Marshaler turns a message into the bytes that Redis stores.
//
// The bytes must hold the message's UUID, metadata and payload; its context and its ack state
// are not stored. Marshal must not change the message nor keep it. It is called concurrently.
type Marshaler interface {
	Marshal(topic string, msg *message.Message) ([]byte, error)
}

// Unmarshaler turns the bytes from Redis back into a message.
//
// Unmarshal owns data: the message may keep parts of it. A message that was not made by
// message.NewMessage could not be acked, so the consumer gets one that is, with its UUID, metadata and
// payload. It is called concurrently. The error for bytes in another form should wrap ErrMalformed.
type Unmarshaler interface {
	Unmarshal(topic string, data []byte) (*message.Message, error)
}

// MarshalerUnmarshaler is both directions of one form.
type MarshalerUnmarshaler interface {
	Marshaler
	Unmarshaler
}
