package redisdelay

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// jsonVersion is the "v" of every message that JSONMarshaler writes.
const jsonVersion = 1

// JSONMarshaler is a Marshaler and Unmarshaler whose form people can read and write in Redis:
//
//	{"v":1,"uuid":"...","metadata":{"key":"value"},"payload":"..."}
//
// JSON text cannot hold bytes that are not UTF-8. Values with such bytes are base64 (RFC 4648
// with padding) under the names "uuid_base64" and "payload_base64". "metadata_base64" has the
// pairs whose key or value is not UTF-8, both in base64.
//
// Unmarshal reads a missing "uuid", "metadata" or "payload" as empty, and refuses unknown
// fields. A nil payload is stored as an empty one. Unmarshal never returns nil metadata.
type JSONMarshaler struct{}

var _ MarshalerUnmarshaler = JSONMarshaler{}

// jsonMessage is the stored form. The order of the fields is their order in Redis.
type jsonMessage struct {
	Version        int               `json:"v"`
	UUID           *string           `json:"uuid,omitempty"`
	UUIDBase64     *string           `json:"uuid_base64,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	MetadataBase64 map[string]string `json:"metadata_base64,omitempty"`
	Payload        *string           `json:"payload,omitempty"`
	PayloadBase64  *string           `json:"payload_base64,omitempty"`
}

// Marshal never returns an error in practice, because every message has a JSON form.
func (JSONMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	stored := jsonMessage{Version: jsonVersion}
	stored.UUID, stored.UUIDBase64 = textOrBase64(msg.UUID)
	stored.Payload, stored.PayloadBase64 = textOrBase64(string(msg.Payload))
	for key, value := range msg.Metadata {
		if utf8.ValidString(key) && utf8.ValidString(value) {
			setIn(&stored.Metadata, key, value)
		} else {
			setIn(&stored.MetadataBase64, encodeBase64(key), encodeBase64(value))
		}
	}

	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false) // "<" is easier to read than "\u003c"
	if err := encoder.Encode(stored); err != nil {
		return nil, fmt.Errorf("marshal message as JSON: %w", err)
	}
	return bytes.TrimSuffix(data.Bytes(), []byte("\n")), nil
}

// Unmarshal returns an error that wraps ErrMalformed for anything but one JSON message.
func (JSONMarshaler) Unmarshal(_ string, data []byte) (*message.Message, error) {
	stored, err := decodeJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	uuid, err := fromTextOrBase64("uuid", stored.UUID, stored.UUIDBase64)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	payload, err := fromTextOrBase64("payload", stored.Payload, stored.PayloadBase64)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	msg := message.NewMessage(uuid, message.Payload(payload))
	if stored.Metadata != nil {
		msg.Metadata = stored.Metadata
	}
	if err := addBase64Metadata(msg.Metadata, stored.MetadataBase64); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return msg, nil
}

func decodeJSON(data []byte) (jsonMessage, error) {
	var stored jsonMessage
	// The decoder would silently replace bytes that are not UTF-8.
	if !utf8.Valid(data) {
		return stored, errors.New("not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&stored); err != nil {
		return stored, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return stored, errors.New("more than one JSON value")
	}
	if stored.Version != jsonVersion {
		return stored, fmt.Errorf("unknown version %d of the JSON form, want \"v\":%d", stored.Version, jsonVersion)
	}
	return stored, nil
}

func addBase64Metadata(metadata message.Metadata, encoded map[string]string) error {
	for encodedKey, encodedValue := range encoded {
		key, err := decodeBase64(encodedKey)
		if err != nil {
			return fmt.Errorf("metadata_base64: key: %w", err)
		}
		value, err := decodeBase64(encodedValue)
		if err != nil {
			return fmt.Errorf("metadata_base64: value: %w", err)
		}
		if _, repeated := metadata[key]; repeated {
			return errors.New("metadata_base64: a key is repeated")
		}
		metadata[key] = value
	}
	return nil
}

// textOrBase64 returns value as text if it is UTF-8, else as base64.
func textOrBase64(value string) (text, encoded *string) {
	if utf8.ValidString(value) {
		return &value, nil
	}
	inBase64 := encodeBase64(value)
	return nil, &inBase64
}

func fromTextOrBase64(field string, text, encoded *string) (string, error) {
	switch {
	case text != nil && encoded != nil:
		return "", fmt.Errorf("both %s and %s_base64", field, field)
	case text != nil:
		return *text, nil
	case encoded != nil:
		value, err := decodeBase64(*encoded)
		if err != nil {
			return "", fmt.Errorf("%s_base64: %w", field, err)
		}
		return value, nil
	}
	return "", nil
}

func encodeBase64(value string) string {
	return base64.StdEncoding.EncodeToString([]byte(value))
}

func decodeBase64(value string) (string, error) {
	decoded, err := base64.StdEncoding.DecodeString(value)
	return string(decoded), err
}

// setIn sets a key. It creates the map on first use, so that the JSON has no empty map.
func setIn(m *map[string]string, key, value string) {
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[key] = value
}
