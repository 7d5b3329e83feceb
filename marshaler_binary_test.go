package redisdelay_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// The binary form is a wire format: a change here makes stored messages unreadable.
func TestBinaryGolden(t *testing.T) {
	long := strings.Repeat("x", 200)
	cases := map[string]struct {
		msg  *message.Message
		want string
	}{
		"packed UUID, pairs sorted": {
			newMessage(sampleUUID, message.Metadata{"b": "2", "a": "1", "": "0"}, []byte("hi")),
			"\x01" + "\x00\x0f\x8f\xad\x5b\xd9\xcb\x46\x9f\xa1\x65\x70\x86\x77\x28\x95\x0e" +
				"\x03" + "\x00" + "\x010" + "\x01a" + "\x011" + "\x01b" + "\x012" + "hi",
		},
		"other UUID": {newMessage("id-1", nil, []byte("p")), "\x01" + "\x05id-1" + "\x00" + "p"},
		"nothing":    {newMessage("", nil, nil), "\x01" + "\x01" + "\x00"},
		"long texts": {
			newMessage(long, message.Metadata{"k": long}, nil),
			"\x01" + "\xc9\x01" + long + "\x01" + "\x01k" + "\xc8\x01" + long,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			data, err := redisdelay.BinaryMarshaler{}.Marshal("topic", c.msg)
			require.NoError(t, err)
			require.Equal(t, hex.Dump([]byte(c.want)), hex.Dump(data))

			got, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", []byte(c.want))
			require.NoError(t, err)
			require.True(t, c.msg.Equals(got))
		})
	}
}

var maxVarint = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"

func TestBinaryRefusesMalformedBytes(t *testing.T) {
	cases := map[string]struct{ data, want string }{
		"nothing":                {"", "no bytes"},
		"version 0":              {"\x00", "version 0"},
		"version 2":              {"\x02\x01\x00", "version 2"},
		"JSON":                   {`{"v":1}`, "another Marshaler"},
		"no UUID":                {"\x01", "length of the UUID"},
		"UUID cut":               {"\x01\x05abc", "UUID of 4 bytes, 3 are left"},
		"UUID huge":              {"\x01" + maxVarint + "abc", "UUID of 18446744073709551614 bytes"},
		"packed UUID cut":        {"\x01\x00" + strings.Repeat("a", 15), "packed UUID of 16 bytes, 15 are left"},
		"UUID not packed":        {"\x01\x25" + sampleUUID + "\x00", "not packed"},
		"no count":               {"\x01\x01", "number of metadata pairs"},
		"count cut":              {"\x01\x01\x80", "number of metadata pairs"},
		"count too high":         {"\x01\x01\x02\x00\x00\x00", "2 metadata pairs in 3 bytes"},
		"count huge":             {"\x01\x01" + maxVarint + "\x00\x00", "18446744073709551615 metadata pairs"},
		"varint over 64 bits":    {"\x01\x01" + strings.Repeat("\xff", 10) + "\x01", "varint"},
		"varint not minimal":     {"\x01\x01\x80\x00", "longer than needed"},
		"key cut":                {"\x01\x01\x01\x05a", "metadata key of 5 bytes, 1 are left"},
		"key huge":               {"\x01\x01\x01" + maxVarint + "a", "metadata key of 18446744073709551615 bytes"},
		"no value":               {"\x01\x01\x01\x01a", "metadata value"},
		"value huge":             {"\x01\x01\x01\x01a" + maxVarint, "metadata value of 18446744073709551615 bytes"},
		"keys out of order":      {"\x01\x01\x02\x01b\x00\x01a\x00", "key 2 is repeated or out of order"},
		"key repeated":           {"\x01\x01\x02\x01a\x00\x01a\x00", "key 2 is repeated or out of order"},
		"empty key repeated":     {"\x01\x01\x02\x00\x00\x00\x00", "key 2 is repeated or out of order"},
		"empty key not in front": {"\x01\x01\x02\x01a\x00\x00\x00", "key 2 is repeated or out of order"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", []byte(c.data))
			require.ErrorIs(t, err, redisdelay.ErrMalformed)
			require.ErrorContains(t, err, c.want)
			require.Nil(t, msg)
		})
	}
}

func TestBinaryRefusesEveryCutBeforeThePayload(t *testing.T) {
	msg := newMessage(sampleUUID, message.Metadata{"key": "value", "other": ""}, nil)
	data, err := redisdelay.BinaryMarshaler{}.Marshal("topic", msg)
	require.NoError(t, err)
	for n := range len(data) {
		_, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", data[:n])
		require.ErrorIs(t, err, redisdelay.ErrMalformed, "cut to %d bytes", n)
	}
}

func TestBinaryAllocationIsBoundedByTheInput(t *testing.T) {
	const kilobyte = 1 << 10
	cases := map[string]struct {
		data  string
		limit uint64
	}{
		"a length of 2^63":               {"\x01" + maxVarint, 4 * kilobyte},
		"a count of 2^63":                {"\x01\x01" + maxVarint, 4 * kilobyte},
		"a key of 1 GiB":                 {"\x01\x01\x01\x80\x80\x80\x80\x04a", 4 * kilobyte},
		"a million pairs, the 2nd wrong": {"\x01\x01\xc0\x84\x3d" + strings.Repeat("\x00", 2_000_000), 16 * kilobyte},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			data := []byte(c.data)
			// The counter covers the whole process, so the test takes the minimum of several runs.
			least := uint64(math.MaxUint64)
			for range 20 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", data)
				runtime.ReadMemStats(&after)
				require.ErrorIs(t, err, redisdelay.ErrMalformed)
				least = min(least, after.TotalAlloc-before.TotalAlloc)
			}
			require.Less(t, least, c.limit)
		})
	}
}

func TestBinaryMarshalAllocatesTheExactSize(t *testing.T) {
	for _, n := range []int{0, 1, 35, 36, 62, 63, 64, 126, 127, 128, 129, 16382, 16383, 16384, 1 << 21} {
		text := strings.Repeat("x", n)
		for name, msg := range map[string]*message.Message{
			"UUID":    newMessage(text, nil, nil),
			"key":     newMessage("", message.Metadata{text: ""}, nil),
			"value":   newMessage("", message.Metadata{"": text}, nil),
			"payload": newMessage(sampleUUID, nil, []byte(text)),
		} {
			data, err := redisdelay.BinaryMarshaler{}.Marshal("topic", msg)
			require.NoError(t, err)
			require.Equal(t, len(data), cap(data), "%s of %d bytes", name, n)
		}
	}
}

func TestBinaryMarshalAllocatesOnce(t *testing.T) {
	metadata := message.Metadata{}
	for i := range 16 {
		metadata[fmt.Sprint(i)] = "value"
	}
	msg := newMessage(sampleUUID, metadata, make([]byte, 100))
	require.Equal(t, 1.0, testing.AllocsPerRun(100, func() {
		_, _ = redisdelay.BinaryMarshaler{}.Marshal("topic", msg)
	}))
}

func TestBinaryPayloadSharesMemoryButAppendDoesNot(t *testing.T) {
	data := append(make([]byte, 0, 64), "\x01\x01\x00abc"...)
	msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", data)
	require.NoError(t, err)
	data[len(data)-1] = 'X'
	require.Equal(t, "abX", string(msg.Payload))
	_ = append(msg.Payload, 'Y')
	require.Equal(t, "abX\x00", string(data[:len(data)+1][3:]))
}

func FuzzBinaryUnmarshal(f *testing.F) {
	for _, seed := range []string{
		"", "\x01", "\x01\x01\x00", "\x01\x05id-1\x02\x01a\x011\x01b\x00payload", `{"v":1}`,
		"\x01\x00" + strings.Repeat("\xab", 16) + "\x01\x00\x00", "\x01\x25" + sampleUUID + "\x00",
		"\x01\x01" + maxVarint, "\x01\x01\x80\x00", "\x01\x01\x02\x00\x00\x00\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		msg := requireStable(t, redisdelay.BinaryMarshaler{}, bytes.Clone(data))
		if msg == nil {
			return
		}
		again, err := redisdelay.BinaryMarshaler{}.Marshal("topic", msg)
		require.NoError(t, err)
		require.Equal(t, data, again, "a message has exactly one form")
	})
}

func FuzzBinaryRoundTrip(f *testing.F) {
	f.Add(sampleUUID, "key", "value", "other", "", []byte("payload"))
	f.Add("", "", "", "", "", []byte(nil))
	f.Add("\xff", "\xff", "\x00", "\xfe", "\xc3", []byte{0xff})
	f.Fuzz(func(t *testing.T, uuid, key1, value1, key2, value2 string, payload []byte) {
		metadata := message.Metadata{key1: value1, key2: value2}
		requireRoundTrip(t, redisdelay.BinaryMarshaler{}, newMessage(uuid, metadata, payload))
	})
}

func benchmarkMessage() *message.Message {
	return newMessage(sampleUUID, message.Metadata{"name": "order.placed"}, bytes.Repeat([]byte("p"), 100))
}

func BenchmarkMarshal(b *testing.B) {
	for form, m := range marshalers {
		b.Run(form, func(b *testing.B) {
			msg := benchmarkMessage()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Marshal("topic", msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	for form, m := range marshalers {
		b.Run(form, func(b *testing.B) {
			data, err := m.Marshal("topic", benchmarkMessage())
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Unmarshal("topic", data); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(data)), "stored-bytes")
		})
	}
}

func TestOnlyUUIDsInTheirUsualTextArePacked(t *testing.T) {
	const usual = "0123abcd-4567-89ef-0123-456789abcdef"
	marshal := func(uuid string) []byte {
		data, err := redisdelay.BinaryMarshaler{}.Marshal("topic", message.NewMessage(uuid, nil))
		require.NoError(t, err)
		msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("topic", data)
		require.NoError(t, err)
		require.Equal(t, uuid, msg.UUID)
		return data
	}
	packed := len(marshal(usual))
	for i := range usual {
		for _, other := range []byte("/:@AFG`g \x00\xff") {
			require.Greater(t, len(marshal(usual[:i]+string([]byte{other})+usual[i+1:])), packed, "%q at %d", other, i)
		}
	}
}
