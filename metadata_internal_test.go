package redisdelay

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// marshaled notes the metadata of what is marshaled.
type marshaled struct{ metadata message.Metadata }

func (m *marshaled) Marshal(_ string, msg *message.Message) ([]byte, error) {
	m.metadata = msg.Metadata
	return nil, nil
}

func TestEntriesOfStreamsLackWhatIsForPublish(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, kept message.Metadata }{
		"a fresh message": {nil, nil},
		"one that failed in a handler": {
			message.Metadata{poisonedKey: "why"},
			message.Metadata{poisonedKey: "why", delay.DelayedForKey: "1s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("uuid", nil)
			msg.Metadata = message.Metadata{
				"name": "kept", DelayKey: "1m", delay.DelayedForKey: "1s",
				DelayIDKey: "id", DelayIDModeKey: "keep", DelayIDWindowKey: "1m",
				ExpiresAtKey: "2040-01-01T00:00:00Z", MaxLatenessKey: "1m", OnExpiryKey: "dead",
			}
			maps.Copy(msg.Metadata, c.own)
			seen := &marshaled{}
			p := &Publisher{config: PublisherConfig{Marshaler: seen, Stream: &StreamConfig{}}}
			_, err := p.prepareOne("topic", msg, &batch{prepared: time.Now()})
			require.NoError(t, err)
			want := message.Metadata{"name": "kept"}
			maps.Copy(want, c.kept)
			require.Equal(t, want, seen.metadata)
		})
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
