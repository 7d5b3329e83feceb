package redisdelay

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// binaryVersion is the first byte of every message that BinaryMarshaler writes.
const binaryVersion = 1

// BinaryMarshaler is the default Marshaler and Unmarshaler: a compact binary form.
//
//	version   1 byte, 1
//	UUID      0 and 16 bytes for a UUID in its usual text (36 characters, lower-case);
//	          for any other text its length plus 1, then its bytes
//	metadata  the number of pairs, then for each pair, in ascending byte order of the keys:
//	          length of the key, key, length of the value, value
//	payload   the rest
//
// Lengths and counts are unsigned varints, as in encoding/binary. Each message has exactly one
// form. So Unmarshal refuses repeated or unsorted keys, varints longer than needed, and a UUID
// as text that could have been packed. UUID, keys and values may hold any bytes.
//
// A nil payload is stored as an empty one. Unmarshal never returns nil metadata. The payload of
// an unmarshaled message shares memory with data.
type BinaryMarshaler struct{}

var _ MarshalerUnmarshaler = BinaryMarshaler{}

// Marshal never returns an error.
func (m BinaryMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	return m.marshal(msg, nil, func(size int) []byte { return make([]byte, 0, size) }), nil
}

// marshal returns the form of the message without some metadata keys, in memory that room returns.
func (BinaryMarshaler) marshal(msg *message.Message, without []string, room func(size int) []byte) []byte {
	packed, canonical := packUUID(msg.UUID)

	// Up to 16 keys are sorted without an allocation.
	var scratch [16]string
	keys := scratch[:0]

	size := 1 + 1 + len(packed) + len(msg.Payload)
	if !canonical {
		size += uvarintSize(len(msg.UUID)+1) - 1 + len(msg.UUID) - len(packed)
	}
	for key, value := range msg.Metadata {
		if slices.Contains(without, key) {
			continue
		}
		keys = append(keys, key)
		size += uvarintSize(len(key)) + len(key) + uvarintSize(len(value)) + len(value)
	}
	slices.Sort(keys)
	size += uvarintSize(len(keys))

	data := append(room(size), binaryVersion)
	if canonical {
		data = append(data, 0)
		data = append(data, packed[:]...)
	} else {
		data = binary.AppendUvarint(data, uint64(len(msg.UUID))+1)
		data = append(data, msg.UUID...)
	}
	data = binary.AppendUvarint(data, uint64(len(keys)))
	for _, key := range keys {
		data = appendText(data, key)
		data = appendText(data, msg.Metadata[key])
	}
	return append(data, msg.Payload...)
}

// Unmarshal returns an error that wraps ErrMalformed for bytes that Marshal cannot have written.
// It allocates no more than a small multiple of len(data), whatever the bytes claim.
func (BinaryMarshaler) Unmarshal(_ string, data []byte) (*message.Message, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: no bytes", ErrMalformed)
	}
	if data[0] != binaryVersion {
		return nil, fmt.Errorf("%w: unknown version %d of the binary form; was it written by another Marshaler?",
			ErrMalformed, data[0])
	}
	in := binaryReader{rest: data[1:]}
	uuid, err := in.uuid()
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(uuid, nil)
	if err := in.metadataInto(msg.Metadata); err != nil {
		return nil, err
	}
	// Clipped, so that appending to the payload cannot write into data's spare capacity.
	msg.Payload = slices.Clip(in.rest)
	return msg, nil
}

// binaryReader reads the parts of the binary form from the start of rest.
type binaryReader struct{ rest []byte }

func (r *binaryReader) uuid() (string, error) {
	n, err := r.uvarint("length of the UUID")
	if err != nil {
		return "", err
	}
	if n == 0 {
		packed, err := r.bytes(16, "packed UUID")
		if err != nil {
			return "", err
		}
		return unpackUUID([16]byte(packed)), nil
	}
	text, err := r.bytes(n-1, "UUID")
	if err != nil {
		return "", err
	}
	uuid := string(text)
	if _, canonical := packUUID(uuid); canonical {
		return "", fmt.Errorf("%w: UUID %s is not packed", ErrMalformed, uuid)
	}
	return uuid, nil
}

// metadataInto reads the pairs into a map. It allocates as it reads, because the count may be
// false.
func (r *binaryReader) metadataInto(metadata message.Metadata) error {
	count, err := r.uvarint("number of metadata pairs")
	if err != nil {
		return err
	}
	// A pair takes at least the two bytes of its lengths.
	if count > uint64(len(r.rest))/2 {
		return fmt.Errorf("%w: %d metadata pairs in %d bytes", ErrMalformed, count, len(r.rest))
	}
	previous := ""
	for i := range count {
		key, err := r.text("metadata key")
		if err != nil {
			return err
		}
		if i > 0 && key <= previous {
			return fmt.Errorf("%w: metadata key %d is repeated or out of order", ErrMalformed, i+1)
		}
		value, err := r.text("metadata value")
		if err != nil {
			return err
		}
		metadata[key] = value
		previous = key
	}
	return nil
}

func (r *binaryReader) text(what string) (string, error) {
	n, err := r.uvarint(what)
	if err != nil {
		return "", err
	}
	text, err := r.bytes(n, what)
	return string(text), err
}

func (r *binaryReader) uvarint(what string) (uint64, error) {
	value, size := binary.Uvarint(r.rest)
	if size <= 0 {
		return 0, fmt.Errorf("%w: %s: bad or incomplete varint", ErrMalformed, what)
	}
	if size > 1 && r.rest[size-1] == 0 {
		return 0, fmt.Errorf("%w: %s: varint longer than needed", ErrMalformed, what)
	}
	r.rest = r.rest[size:]
	return value, nil
}

func (r *binaryReader) bytes(n uint64, what string) ([]byte, error) {
	if n > uint64(len(r.rest)) {
		return nil, fmt.Errorf("%w: %s of %d bytes, %d are left", ErrMalformed, what, n, len(r.rest))
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken, nil
}

func appendText(data []byte, text string) []byte {
	data = binary.AppendUvarint(data, uint64(len(text)))
	return append(data, text...)
}

// uvarintSize is the number of bytes that binary.AppendUvarint adds for n: seven bits a byte.
func uvarintSize(n int) int {
	return (bits.Len64(uint64(n)|1) + 6) / 7
}

// packUUID returns the 16 bytes of a UUID in its usual lower-case text. Any other text is not ok,
// because unpackUUID could not restore it.
func packUUID(text string) (packed [16]byte, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return packed, false
	}
	at, seen := 0, byte(0)
	for i := range packed {
		if at == 8 || at == 13 || at == 18 || at == 23 {
			at++
		}
		high, low := digitValues[text[at]], digitValues[text[at+1]]
		packed[i] = high<<4 | low
		seen |= high | low
		at += 2
	}
	return packed, seen < 16
}

// digitValues has the values of lower-case hexadecimal digits, and 16 for all other bytes.
var digitValues = func() (values [256]byte) {
	for c := range values {
		values[c] = 16
	}
	for value, c := range "0123456789abcdef" {
		values[c] = byte(value)
	}
	return values
}()

func unpackUUID(packed [16]byte) string {
	var text [36]byte
	at := 0
	for i, b := range packed {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text[at] = '-'
			at++
		}
		at += hex.Encode(text[at:], []byte{b})
	}
	return string(text[:])
}
