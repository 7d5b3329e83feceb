package redisdelay_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// A message that waits for a stream is in this form, and its parts are what subscribers of watermill-redisstream read.
func TestStreamGolden(t *testing.T) {
	t.Parallel()
	sixteen, pairs := message.Metadata{}, ""
	for i := range 16 {
		sixteen[fmt.Sprintf("%02d", i)] = ""
		pairs += fmt.Sprintf("\xa2%02d\xa0", i)
	}
	x := func(n int) string { return strings.Repeat("x", n) }
	cases := map[string]struct {
		msg  *message.Message
		want string
	}{
		"nothing":       {newMessage("", nil, nil), "0 0 "},
		"no metadata":   {newMessage("id 1", nil, []byte("1 2 p")), "4 0 id 11 2 p"},
		"pairs sorted":  {newMessage("id", message.Metadata{"b": "2", "a": "1"}, []byte("p")), "2 9 id\x82\xa1a\xa11\xa1b\xa12p"},
		"31 bytes":      {newMessage("", message.Metadata{"": x(31)}, nil), "0 34 \x81\xa0\xbf" + x(31)},
		"32 bytes":      {newMessage("", message.Metadata{"": x(32)}, nil), "0 36 \x81\xa0\xd9\x20" + x(32)},
		"256 bytes":     {newMessage("", message.Metadata{"": x(256)}, nil), "0 261 \x81\xa0\xda\x01\x00" + x(256)},
		"65,536 bytes":  {newMessage("", message.Metadata{"": x(65536)}, nil), "0 65543 \x81\xa0\xdb\x00\x01\x00\x00" + x(65536)},
		"sixteen pairs": {newMessage("", sixteen, nil), "0 67 \xde\x00\x10" + pairs},
		"not UTF-8":     {newMessage("\xff", message.Metadata{"\xfe": "\xfd"}, []byte{0, 0xff}), "1 5 \xff\x81\xa1\xfe\xa1\xfd\x00\xff"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			data, err := redisdelay.StreamMarshaler{}.Marshal("topic", c.msg)
			require.NoError(t, err)
			require.Equal(t, hex.Dump([]byte(c.want)), hex.Dump(data))
			got, err := redisdelay.StreamMarshaler{}.Unmarshal("topic", []byte(c.want))
			require.NoError(t, err)
			require.True(t, c.msg.Equals(got))
		})
	}
}

func TestStreamRefusesMalformedBytes(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ data, want string }{
		"nothing":               {"", "length of the UUID"},
		"binary":                {"\x01\x01\x00", "length of the UUID"},
		"JSON":                  {`{"v":1}`, "length of the UUID"},
		"negative":              {"-1 0 ", "length of the UUID"},
		"a sign":                {"+1 0 x", "length of the UUID"},
		"leading zero":          {"00 0 ", "length of the UUID"},
		"huge":                  {"99999999999999999999 0 ", "length of the UUID"},
		"one length":            {"1 x", "length of the metadata"},
		"UUID cut":              {"3 0 ab", "ends within"},
		"metadata cut":          {"1 3 xab", "ends within"},
		"huge metadata":         {"1 99999999999 x", "ends within"},
		"no map":                {"0 1 \xa0", "no map"},
		"no length of the map":  {"0 2 \xde\x00", "no map"},
		"an empty map":          {"0 1 \x80", "not in order"},
		"a pair less":           {"0 3 \x82\xa0\xa0", "not of texts"},
		"a number":              {"0 3 \x81\xa0\x01", "not of texts"},
		"a text cut":            {"0 4 \x81\xa0\xa2x", "not of texts"},
		"a text of 4 GB":        {"0 6 \x81\xdb\xff\xff\xff\xff", "not of texts"},
		"more behind":           {"0 4 \x81\xa0\xa0\xa0", "not in order"},
		"not in order":          {"0 9 \x82\xa1b\xa12\xa1a\xa11", "not in order"},
		"twice":                 {"0 9 \x82\xa1a\xa11\xa1a\xa12", "not in order"},
		"a longer length":       {"0 4 \x81\xa0\xd9\x00", "not in order"},
		"reserved":              {"0 27 \x81\xb7_watermill_message_uuid\xa1x", "reserved"},
		"a longer map's length": {"0 5 \xde\x00\x01\xa0\xa0", "not in order"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := redisdelay.StreamMarshaler{}.Unmarshal("topic", []byte(c.data))
			require.ErrorIs(t, err, redisdelay.ErrMalformed)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestStreamRefusesMetadataThatTheSubscribersKeepForThemselves(t *testing.T) {
	t.Parallel()
	_, err := redisdelay.StreamMarshaler{}.Marshal("topic", newMessage("1", message.Metadata{"_watermill_message_uuid": "2"}, nil))
	require.ErrorContains(t, err, "reserved")
}

func FuzzStreamUnmarshal(f *testing.F) {
	for _, seed := range []string{
		"", "0 0 ", "4 0 id 11 2 p", "2 9 id\x82\xa1a\xa11\xa1b\xa12p", "0 4 \x81\xa0\xd9\x00", "0 5 \xdf\xff\xff\xff\xff",
		"0 5 \xde\x00\x01\xa0\xa0", `{"v":1}`, "99999999999 99999999999 ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		msg := requireStable(t, redisdelay.StreamMarshaler{}, bytes.Clone(data))
		if msg == nil {
			return
		}
		again, err := redisdelay.StreamMarshaler{}.Marshal("topic", msg)
		require.NoError(t, err)
		require.Equal(t, data, again, "a message has exactly one form")
	})
}
