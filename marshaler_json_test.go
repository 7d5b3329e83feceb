package redisdelay_test

import (
	"bytes"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// The JSON form is a wire format: a change here makes stored messages unreadable.
func TestJSONGolden(t *testing.T) {
	cases := map[string]struct {
		msg  *message.Message
		want string
	}{
		"usual": {
			newMessage(sampleUUID, message.Metadata{"b": "2", "a": "<1>"}, []byte(`{"n":"é"}`)),
			`{"v":1,"uuid":"` + sampleUUID + `","metadata":{"a":"<1>","b":"2"},"payload":"{\"n\":\"é\"}"}`,
		},
		"nothing": {newMessage("", nil, nil), `{"v":1,"uuid":"","payload":""}`},
		"not UTF-8": {
			newMessage("\xff", message.Metadata{"\xfe": "v", "k": "\xfd", "a": "1"}, []byte{0xfc, 0}),
			`{"v":1,"uuid_base64":"/w==","metadata":{"a":"1"},` +
				`"metadata_base64":{"/g==":"dg==","aw==":"/Q=="},"payload_base64":"/AA="}`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			data, err := redisdelay.JSONMarshaler{}.Marshal("topic", c.msg)
			require.NoError(t, err)
			require.Equal(t, c.want, string(data))

			got, err := redisdelay.JSONMarshaler{}.Unmarshal("topic", []byte(c.want))
			require.NoError(t, err)
			require.True(t, c.msg.Equals(got))
		})
	}
}

func TestJSONTakesMessagesWrittenByHand(t *testing.T) {
	cases := map[string]struct {
		data string
		want *message.Message
	}{
		"parts left out":  {`{"v":1}`, newMessage("", nil, nil)},
		"spaces":          {" {\n\"payload\": \"p\", \"v\": 1 }\n", newMessage("", nil, []byte("p"))},
		"null":            {`{"v":1,"uuid":null,"metadata":null,"payload":null}`, newMessage("", nil, nil)},
		"base64 for text": {`{"v":1,"payload_base64":"cA=="}`, newMessage("", nil, []byte("p"))},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := redisdelay.JSONMarshaler{}.Unmarshal("topic", []byte(c.data))
			require.NoError(t, err)
			require.True(t, c.want.Equals(got))
			require.NotNil(t, got.Metadata)
		})
	}
}

func TestJSONRefusesMalformedBytes(t *testing.T) {
	cases := map[string]struct{ data, want string }{
		"nothing":                   {"", "EOF"},
		"binary form":               {"\x01\x01\x00", "invalid character"},
		"cut":                       {`{"v":1,"uuid":"a`, "unexpected EOF"},
		"null":                      {`null`, "unknown version 0"},
		"no version":                {`{"uuid":"a"}`, "unknown version 0"},
		"version 2":                 {`{"v":2}`, "unknown version 2"},
		"version text":              {`{"v":"1"}`, "v of type int"},
		"two values":                {`{"v":1}{"v":1}`, "more than one"},
		"trailing bytes":            {`{"v":1}x`, "more than one"},
		"unknown field":             {`{"v":1,"metdata":{}}`, "metdata"},
		"payload not text":          {`{"v":1,"payload":{"a":1}}`, "payload"},
		"not UTF-8":                 {"{\"v\":1,\"uuid\":\"\xff\"}", "not UTF-8"},
		"two UUIDs":                 {`{"v":1,"uuid":"a","uuid_base64":"YQ=="}`, "both uuid and uuid_base64"},
		"two payloads":              {`{"v":1,"payload":"","payload_base64":""}`, "both payload and payload_base64"},
		"UUID not base64":           {`{"v":1,"uuid_base64":"!"}`, "uuid_base64"},
		"payload not base64":        {`{"v":1,"payload_base64":"YQ"}`, "payload_base64"},
		"key not base64":            {`{"v":1,"metadata_base64":{"!":""}}`, "metadata_base64: key"},
		"value not base64":          {`{"v":1,"metadata_base64":{"":"!"}}`, "metadata_base64: value"},
		"key in both objects":       {`{"v":1,"metadata":{"a":"1"},"metadata_base64":{"YQ==":""}}`, "twice"},
		"key twice in other base64": {`{"v":1,"metadata_base64":{"YQ==":"","YR==":""}}`, "twice"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			msg, err := redisdelay.JSONMarshaler{}.Unmarshal("topic", []byte(c.data))
			require.ErrorIs(t, err, redisdelay.ErrMalformed)
			require.ErrorContains(t, err, c.want)
			require.Nil(t, msg)
		})
	}
}

func FuzzJSONUnmarshal(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{"v":1}`, `{"v":1,"uuid":"a","metadata":{"k":"v"},"payload":"p"}`,
		`{"v":1,"uuid_base64":"/w==","metadata_base64":{"/g==":"dg=="},"payload_base64":"/AA="}`,
		`{"v":1,"metadata":{"a":"1"},"metadata_base64":{"YQ==":""}}`, `{"v":1,"uuid":"\ud800"}`,
		`{"V":1,"v":1,"metadata":{"a":"1","a":"2"}}`, "{\"v\":1,\"uuid\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		requireStable(t, redisdelay.JSONMarshaler{}, bytes.Clone(data))
	})
}
