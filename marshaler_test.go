package redisdelay_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

const sampleUUID = "0f8fad5b-d9cb-469f-a165-70867728950e"

// marshalers are all marshalers. Each test here must hold for all of them.
var marshalers = map[string]redisdelay.MarshalerUnmarshaler{
	"binary": redisdelay.BinaryMarshaler{},
	"json":   redisdelay.JSONMarshaler{},
	"stream": redisdelay.StreamMarshaler{},
}

func newMessage(uuid string, metadata message.Metadata, payload []byte) *message.Message {
	msg := message.NewMessage(uuid, payload)
	msg.Metadata = metadata
	return msg
}

// requireRoundTrip checks that msg survives, and that Marshal does not change it.
func requireRoundTrip(t require.TestingT, m redisdelay.MarshalerUnmarshaler, msg *message.Message) {
	before := msg.Copy()
	data, err := m.Marshal("topic", msg)
	require.NoError(t, err)
	require.True(t, msg.Equals(before), "Marshal changed the message")

	got, err := m.Unmarshal("topic", data)
	require.NoError(t, err)
	require.Equal(t, msg.UUID, got.UUID)
	require.Equal(t, string(msg.Payload), string(got.Payload))
	require.NotNil(t, got.Metadata)
	require.True(t, maps.Equal(msg.Metadata, got.Metadata), "want %q, got %q", msg.Metadata, got.Metadata)

	again, err := m.Marshal("topic", msg)
	require.NoError(t, err)
	require.Equal(t, data, again, "Marshal is not deterministic")
}

func TestMessagesSurviveTheRoundTrip(t *testing.T) {
	manyPairs := message.Metadata{}
	for i := range 200 {
		manyPairs[fmt.Sprint("key ", i)] = strings.Repeat("v", i)
	}
	messages := map[string]*message.Message{
		"usual":                    newMessage(sampleUUID, message.Metadata{"name": "order.placed"}, []byte(`{"id":1}`)),
		"nothing":                  newMessage("", nil, nil),
		"empty payload":            newMessage(sampleUUID, message.Metadata{}, []byte{}),
		"empty key and value":      newMessage("", message.Metadata{"": ""}, []byte{0}),
		"short UUID":               newMessage("a", nil, nil),
		"upper-case UUID":          newMessage(strings.ToUpper(sampleUUID), nil, nil),
		"UUID of wrong digits":     newMessage("0f8fad5b-d9cb-469f-a165-70867728950g", nil, nil),
		"UUID of wrong dashes":     newMessage("0f8fad5bd-9cb-469f-a165-70867728950e", nil, nil),
		"UUID of other separators": newMessage("0f8fad5b_d9cb_469f_a165_70867728950e", nil, nil),
		"36 dashes":                newMessage(strings.Repeat("-", 36), nil, nil),
		"UUID longer":              newMessage(sampleUUID+"0", nil, nil),
		"UUID of nil":              newMessage("00000000-0000-0000-0000-000000000000", nil, nil),
		"UUID of every digit":      newMessage("01234567-89ab-cdef-fedc-ba9876543210", nil, nil),
		"long UUID":                newMessage(strings.Repeat("u", 70_000), nil, nil),
		"UUID not UTF-8":           newMessage("\xff\x00\xfe", nil, nil),
		"key not UTF-8":            newMessage("", message.Metadata{"\xc3\x28": "plain", "plain": "x"}, nil),
		"value not UTF-8":          newMessage("", message.Metadata{"k": "\x80", "K": "\x80"}, nil),
		"replacement character":    newMessage("\ufffd", message.Metadata{"\ufffd": "\xff"}, []byte("\ufffd")),
		"keys equal but for case":  newMessage("", message.Metadata{"a": "1", "A": "2", "\xff": "3"}, nil),
		"key that is base64":       newMessage("", message.Metadata{"/w==": "1", "\xff": "2"}, nil),
		"control characters":       newMessage("\x00\n\"\\", message.Metadata{"\r\t": "\u2028</script>"}, []byte("\x00\x7f")),
		"payload not UTF-8":        newMessage("", nil, []byte{0xff, 0xfe, 0x00}),
		"payload cut in a rune":    newMessage("", nil, []byte("é")[:1]),
		"many pairs":               newMessage("", manyPairs, nil),
		"large":                    newMessage("", message.Metadata{"k": strings.Repeat("é", 100_000)}, make([]byte, 1<<20)),
	}
	for form, m := range marshalers {
		for name, msg := range messages {
			t.Run(form+"/"+name, func(t *testing.T) { requireRoundTrip(t, m, msg) })
		}
	}
}

func TestAnyMessageSurvivesTheRoundTrip(t *testing.T) {
	anyBytes := rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })
	text := rapid.OneOf(rapid.String(), anyBytes)
	uuid := rapid.OneOf(text, rapid.StringMatching(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`))

	for form, m := range marshalers {
		t.Run(form, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				requireRoundTrip(t, m, newMessage(
					uuid.Draw(t, "uuid"),
					rapid.MapOf(text, text).Draw(t, "metadata"),
					[]byte(text.Draw(t, "payload")),
				))
			})
		})
	}
}

func TestUnmarshaledMessageCanBeSettledAndChanged(t *testing.T) {
	for form, m := range marshalers {
		t.Run(form, func(t *testing.T) {
			data, err := m.Marshal("topic", newMessage("", nil, nil))
			require.NoError(t, err)
			msg, err := m.Unmarshal("topic", data)
			require.NoError(t, err)

			require.NotNil(t, msg.Payload)
			require.Empty(t, msg.Payload)
			msg.Metadata.Set("k", "v")
			require.True(t, msg.Ack())
			select {
			case <-msg.Acked():
			default:
				t.Fatal("nobody would learn of the ack")
			}
		})
	}
}

// requireStable checks that a message from accepted bytes survives further round trips.
func requireStable(t *testing.T, m redisdelay.MarshalerUnmarshaler, data []byte) *message.Message {
	t.Helper()
	msg, err := m.Unmarshal("topic", data)
	if err != nil {
		require.ErrorIs(t, err, redisdelay.ErrMalformed)
		require.Nil(t, msg)
		return nil
	}
	requireRoundTrip(t, m, msg)
	return msg
}
