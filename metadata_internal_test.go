package redisdelay

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/publish"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestDelayForAndDelayUntilReplaceEachOther(t *testing.T) {
	msg := &message.Message{} // metadata nil
	DelayFor(msg, 90*time.Second)
	require.Equal(t, message.Metadata{DelayKey: "1m30s"}, msg.Metadata)
	DelayUntil(msg, time.Date(2026, 3, 4, 14, 0, 0, 123456789, time.FixedZone("", 7200)))
	require.Equal(t, message.Metadata{DelayUntilKey: "2026-03-04T12:00:00.123456789Z"}, msg.Metadata)
	DelayFor(msg, time.Millisecond)
	require.Equal(t, message.Metadata{DelayKey: "1ms"}, msg.Metadata)
}

func TestDelayForIsReadAsWritten(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, int(400*time.Millisecond), time.UTC)
	roundUp := func(d time.Duration) time.Duration {
		return (d + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(MaxDelay)).Draw(t, "d"))
		msg := message.NewMessage("", nil)

		DelayFor(msg, d)
		got, err := meta.Due(msg, now)
		require.NoError(t, err)
		require.Equal(t, queue.In(roundUp(d)), got)

		DelayUntil(msg, now.Add(d))
		got, err = meta.Due(msg, now)
		require.NoError(t, err)
		require.Equal(t, queue.At(now.Add(roundUp(d))), got)
	})
}

// The default Marshaler leaves keys out; any other gets a message without them.
func TestKeysAreLeftOutAsIfTheyHadNotBeenThere(t *testing.T) {
	t.Parallel()
	all := append([]string{"name", "zone", ""}, meta.NotStored(true, false)...)
	p := &Publisher{config: PublisherConfig{Marshaler: BinaryMarshaler{}}}
	other := &Publisher{config: PublisherConfig{Marshaler: struct{ Marshaler }{BinaryMarshaler{}}}}
	engine := publish.NewEngine(publish.Config{})
	for _, without := range [][]string{
		nil, meta.NotStored(false, false), meta.NotStored(false, true), meta.NotStored(true, false), meta.NotStored(true, true),
	} {
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
			b := engine.NewBatch(1)
			got, err := p.marshal("topic", msg, without, b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, len(got), cap(got), "more memory than it needs")
			engine.Free(b)
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
			_, err := p.prepareOne("topic", msg, publish.NewEngine(publish.Config{}).NewBatch(1))
			require.NoError(t, err)
			want := message.Metadata{"name": "kept"}
			maps.Copy(want, c.kept)
			require.Equal(t, want, seen.metadata)
		})
	}
}

func TestMostMessagesArePreparedWithoutAnAllocation(t *testing.T) {
	p := &Publisher{engine: publish.NewEngine(publish.Config{})}
	p.config.setDefaults()
	msg := message.NewMessage("0f8fad5b-d9cb-469f-a165-70867728950e", make([]byte, 100))
	msg.Metadata = message.Metadata{"kind": "test", DelayKey: "1m"}
	messages := []*message.Message{msg}
	b := p.engine.NewBatch(1)
	require.Less(t, testing.AllocsPerRun(1000, func() { // now and then bodies need memory
		b.Bytes = 0
		require.NoError(t, p.fill(b, "topic", messages))
	}), 1.0)
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
				batch := p.engine.NewBatch(1)
				if err := p.fill(batch, "topic", []*message.Message{msg}); err != nil {
					b.Fatal(err)
				}
				p.engine.Free(batch)
			}
		})
	}
}
