package redisdelay

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestNoKeyWithAMeaningIsPlain(t *testing.T) {
	t.Parallel()
	keys := []string{delay.DelayedForKey, delay.DelayedUntilKey}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	declared := regexp.MustCompile(`(?m)^(?:\t|const )[A-Z]\w*Key += "(.*)"$`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range declared.FindAllStringSubmatch(string(text), -1) {
			keys = append(keys, found[1])
		}
	}
	require.Len(t, keys, 12)
	for _, key := range keys {
		require.False(t, isPlain(message.Metadata{"other": "", key: ""}), key)
	}
	require.True(t, isPlain(message.Metadata{"other": "", "Delay": "", "": ""}))
	require.True(t, isPlain(nil))
}

// The default Marshaler leaves keys out; any other gets a message without them.
func TestKeysAreLeftOutAsIfTheyHadNotBeenThere(t *testing.T) {
	t.Parallel()
	all := append([]string{"name", "zone", ""}, streamKeys...)
	p := &Publisher{config: PublisherConfig{Marshaler: BinaryMarshaler{}}}
	other := &Publisher{config: PublisherConfig{Marshaler: struct{ Marshaler }{BinaryMarshaler{}}}}
	b := &batch{done: make(chan struct{}, 1)}
	for _, without := range [][]string{nil, delayingKeys(false), delayingKeys(true), streamKeys, streamKeys[1:]} {
		for n := range 1 << len(all) {
			if n%7 != 0 { // some will do
				continue
			}
			msg, kept := message.NewMessage("uuid", []byte("payload")), message.NewMessage("uuid", []byte("payload"))
			for i, key := range all {
				if n>>i&1 == 1 {
					msg.Metadata[key] = "value"
					if !slices.Contains(without, key) {
						kept.Metadata[key] = "value"
					}
				}
			}
			before := len(msg.Metadata)
			want, err := BinaryMarshaler{}.Marshal("topic", kept)
			require.NoError(t, err)
			got, err := p.marshal("topic", msg, without, b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, len(got), cap(got), "more memory than it needs")
			require.Len(t, b.bodies, len(got), "it is not the batch's")
			p.free(b)
			got, err = other.marshal("topic", msg, without, b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Len(t, msg.Metadata, before, "the caller's message has changed")
		}
	}
}

// BenchmarkPrepare is what a Publisher does with a message before it goes to Redis.
func BenchmarkPrepare(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which nothing is sent to
	defer func() { require.NoError(b, client.Close()) }()
	p, err := NewPublisher(PublisherConfig{Client: client}, nil)
	require.NoError(b, err)
	for name, metadata := range map[string]message.Metadata{
		"now":     {"kind": "benchmark"},
		"delayed": {"kind": "benchmark", DelayKey: "1m"},
	} {
		b.Run(name, func(b *testing.B) {
			msg := message.NewMessage("0f8fad5b-d9cb-469f-a165-70867728950e", make([]byte, 100))
			msg.Metadata = metadata
			b.ReportAllocs()
			for b.Loop() {
				prepared, err := p.prepare("topic", []*message.Message{msg})
				if err != nil {
					b.Fatal(err)
				}
				p.free(prepared)
			}
		})
	}
}
