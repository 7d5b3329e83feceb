package redisdelay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// streamUUIDKey is a metadata key that watermill-redisstream reserves.
const streamUUIDKey = "_watermill_message_uuid"

// StreamMarshaler is the form of messages that wait for a Redis Stream. It holds the three fields
// of the stream entry, as watermill-redisstream's DefaultMarshallerUnmarshaller writes and reads
// them. A Publisher with a StreamConfig uses it automatically.
//
//	<bytes of the UUID> <bytes of the metadata> <UUID><metadata in MessagePack, or nothing><payload>
//
// The zero value is ready to use.
type StreamMarshaler struct{}

var _ MarshalerUnmarshaler = StreamMarshaler{}

// Marshal returns the form, or an error for metadata keys that watermill-redisstream reserves.
func (StreamMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	if value := msg.Metadata[streamUUIDKey]; value != "" {
		return nil, fmt.Errorf("metadata %s is reserved by watermill-redisstream for the UUID", streamUUIDKey)
	}
	metadata := appendPackedMap(nil, msg.Metadata)
	data := make([]byte, 0, 16+len(msg.UUID)+len(metadata)+len(msg.Payload))
	data = strconv.AppendInt(data, int64(len(msg.UUID)), 10)
	data = append(data, ' ')
	data = strconv.AppendInt(data, int64(len(metadata)), 10)
	data = append(data, ' ')
	data = append(data, msg.UUID...)
	data = append(data, metadata...)
	return append(data, msg.Payload...), nil
}

// Unmarshal reads the form. Errors wrap ErrMalformed.
func (StreamMarshaler) Unmarshal(_ string, data []byte) (*message.Message, error) {
	uuid, rest, ok := cutLength(data)
	if !ok {
		return nil, fmt.Errorf("%w: the length of the UUID is missing or invalid", ErrMalformed)
	}
	packed, rest, ok := cutLength(rest)
	if !ok {
		return nil, fmt.Errorf("%w: the length of the metadata is missing or invalid", ErrMalformed)
	}
	if uuid > len(rest) || packed > len(rest)-uuid {
		return nil, fmt.Errorf("%w: the UUID or the metadata is incomplete", ErrMalformed)
	}
	metadata, err := readPackedMap(rest[uuid : uuid+packed])
	if err != nil {
		return nil, err
	}
	if metadata[streamUUIDKey] != "" {
		return nil, fmt.Errorf("%w: metadata %s is reserved", ErrMalformed, streamUUIDKey)
	}
	msg := message.NewMessage(string(rest[:uuid]), rest[uuid+packed:])
	msg.Metadata = metadata
	return msg, nil
}

// cutLength reads a number as Marshal writes it, and the space after it.
func cutLength(data []byte) (n int, rest []byte, ok bool) {
	end := slices.Index(data[:min(len(data), 12)], ' ')
	if end < 0 {
		return 0, nil, false
	}
	written, err := strconv.ParseInt(string(data[:end]), 10, 64)
	n = int(min(written, math.MaxInt)) // with 32-bit ints, MaxInt is still more than any data
	return n, data[end+1:], err == nil && n >= 0 && strconv.FormatInt(written, 10) == string(data[:end])
}

// The functions below write and read the part of MessagePack that a map of strings needs. Keys are
// sorted, so that each message has one form.

func appendPackedMap(data []byte, m map[string]string) []byte {
	switch n := len(m); {
	case n == 0:
		return data
	case n < 16:
		data = append(data, 0x80|byte(n))
	case n < 1<<16:
		data = binary.BigEndian.AppendUint16(append(data, 0xde), uint16(n))
	default:
		data = binary.BigEndian.AppendUint32(append(data, 0xdf), uint32(n))
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		data = appendPacked(appendPacked(data, key), m[key])
	}
	return data
}

func appendPacked(data []byte, text string) []byte {
	switch n := len(text); {
	case n < 32:
		data = append(data, 0xa0|byte(n))
	case n < 1<<8:
		data = append(data, 0xd9, byte(n))
	case n < 1<<16:
		data = binary.BigEndian.AppendUint16(append(data, 0xda), uint16(n))
	default:
		data = binary.BigEndian.AppendUint32(append(data, 0xdb), uint32(n))
	}
	return append(data, text...)
}

// readPackedMap reads a map. It refuses bytes that appendPackedMap would not write.
func readPackedMap(packed []byte) (message.Metadata, error) {
	metadata := message.Metadata{}
	if len(packed) == 0 {
		return metadata, nil
	}
	n, data, ok := cutPackedLength(packed, 0x80, 16, [3]byte{0, 0xde, 0xdf})
	if !ok {
		return nil, fmt.Errorf("%w: the metadata is not a map", ErrMalformed)
	}
	for range n {
		var pair [2]string
		for i := range pair {
			var length int
			if length, data, ok = cutPackedLength(data, 0xa0, 32, [3]byte{0xd9, 0xda, 0xdb}); !ok || length > len(data) {
				return nil, fmt.Errorf("%w: a metadata text is invalid or incomplete", ErrMalformed)
			}
			pair[i], data = string(data[:length]), data[length:]
		}
		metadata[pair[0]] = pair[1]
	}
	if !bytes.Equal(appendPackedMap(nil, metadata), packed) {
		return nil, fmt.Errorf("%w: the metadata is not sorted, or has bytes after it", ErrMalformed)
	}
	return metadata, nil
}

// cutPackedLength reads a length. A length below limit is in the first byte, with the bits of
// fixed. Other lengths follow one of the marks, in one, two or four bytes. A mark of zero is
// unused.
func cutPackedLength(data []byte, fixed byte, limit int, marks [3]byte) (n int, rest []byte, ok bool) {
	if len(data) == 0 {
		return 0, nil, false
	}
	mark, rest := data[0], data[1:]
	switch {
	case mark&^byte(limit-1) == fixed:
		return int(mark & byte(limit-1)), rest, true
	case mark == marks[0] && mark != 0 && len(rest) >= 1:
		return int(rest[0]), rest[1:], true
	case mark == marks[1] && len(rest) >= 2:
		return int(binary.BigEndian.Uint16(rest)), rest[2:], true
	case mark == marks[2] && len(rest) >= 4:
		return int(min(binary.BigEndian.Uint32(rest), math.MaxInt32)), rest[4:], true // fits a 32-bit int
	}
	return 0, nil, false
}
