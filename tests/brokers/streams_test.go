package brokers

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// streamed is how many messages the test of crashes has.
const streamed = 10_000

// newStreamPublisher publishes into the streams of a server. Without a scheduler of its own,
// another process has to run one.
func newStreamPublisher(t *testing.T, server *redistest.Instance, stream redisdelay.StreamConfig) *redisdelay.Publisher {
	t.Helper()
	return testkit.Closes(t, testkit.NewPublisher(t, on(t, server), func(c *redisdelay.PublisherConfig) { c.Stream = &stream }))
}

// subscriberTo is one of watermill-redisstream, as it is; it closes its client.
func subscriberTo(t *testing.T, server *redistest.Instance, config redisstream.SubscriberConfig) *redisstream.Subscriber {
	t.Helper()
	config.Client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	s, err := redisstream.NewSubscriber(config, nil)
	require.NoError(t, err)
	return s
}

// Everything comes into the stream once, and so out of it, over the end of the process that
// schedules, and of the server.
func TestStreamsOverKillsOfTheSchedulerAndTheServer(t *testing.T) {
	for name, config := range map[string]redisstream.SubscriberConfig{
		"consumer group": {ConsumerGroup: "consumers", ClaimInterval: time.Second, MaxIdleTime: 10 * time.Second},
		"fan-out":        {FanOutOldestId: "0"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			subscriber := subscriberTo(t, server, config)
			t.Cleanup(func() { assert.NoError(t, subscriber.Close()) })
			consumed, err := subscriber.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			got := newReceipts()
			go got.ackAll(consumed)

			scheduler := startChild(t, "scheduler", "", server.Addr(), "", nil)
			publisher := newStreamPublisher(t, server, redisdelay.StreamConfig{DisableScheduler: true})
			sent := publishAll(t, publisher, streamed)
			for i := range 6 {
				got.await(t, (i+1)*streamed/8)
				if i%2 == 0 {
					scheduler.kill()
					scheduler = startChild(t, "scheduler", "", server.Addr(), "", nil)
				} else {
					server.Restart() // by SIGKILL
				}
			}
			got.await(t, streamed)
			scheduler.stop()
			checkStream(t, server, sent)
			checkStreamed(t, sent, got)
			queuetest.CheckDrained(t, server.Client(t), redisdelay.DefaultKeyPrefix)
		})
	}
}

// checkStream checks that the stream has each message once, and not from before it was due by the
// server's clock.
func checkStream(t *testing.T, server *redistest.Instance, sent sent) {
	t.Helper()
	seen := map[string]bool{}
	for _, entry := range server.Client(t).XRange(t.Context(), topic, "-", "+").Val() {
		uuid := entry.Values[redisstream.UUIDHeaderKey].(string)
		require.False(t, seen[uuid], "%s is in the stream twice", uuid)
		seen[uuid] = true
		ms, _, _ := strings.Cut(entry.ID, "-")
		at, err := strconv.ParseInt(ms, 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, sent.orders[uuid].due.UnixMilli(), "%s is early", uuid)
	}
	require.Len(t, seen, len(sent.orders))
}

// checkStreamed checks that what came is what was sent, once.
func checkStreamed(t *testing.T, sent sent, got *receipts) {
	t.Helper()
	got.mu.Lock()
	defer got.mu.Unlock()
	came := map[string]int{}
	for _, r := range got.all {
		want, known := sent.orders[r.UUID]
		require.True(t, known, "%q was never sent", r.UUID)
		came[r.UUID]++
		require.Equal(t, 1, came[r.UUID], "%s came twice", r.UUID)
		require.False(t, r.At.Before(want.due), "%s came %v early", r.UUID, want.due.Sub(r.At))
		require.Equal(t, want.metadata, r.Metadata)
		require.Equal(t, encoded(want.payload), r.Payload)
	}
	require.Len(t, came, len(sent.orders))
}

// The Features are those that watermill-redisstream claims in its own tests.
var redisstreamFeatures = tests.Features{
	ConsumerGroups:                      true,
	GuaranteedOrderWithSingleSubscriber: true,
	Persistent:                          true,
	NewSubscriberReceivesOldMessages:    true,
}

func TestUniversalIntoStreams(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "delayed": time.Second} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			inGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
				publisher := newStreamPublisher(t, server, redisdelay.StreamConfig{})
				subscriber := subscriberTo(t, server, redisstream.SubscriberConfig{ // as in its own tests
					Consumer:      watermill.NewShortUUID(),
					ConsumerGroup: group,
					BlockTime:     10 * time.Millisecond,
					ClaimInterval: 3 * time.Second,
					MaxIdleTime:   5 * time.Second,
				})
				t.Cleanup(func() { _ = subscriber.Close() }) // not all of the suite's tests close what they had made
				return testkit.Delaying{Publisher: publisher, Delay: delay}, subscriber
			}
			tests.TestPubSub(t, redisstreamFeatures, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return inGroup(t, groupOf(t))
			}, inGroup)
			queuetest.CheckDrained(t, server.Client(t), redisdelay.DefaultKeyPrefix)
		})
	}
}

// groupOf is the group of a subscriber that names none. In watermill-redisstream's own tests each
// has one of its own, and so begins with the oldest message. One test is about that; in the others
// they share one, since to begin so often takes so long on a busy machine that the suite gives up.
func groupOf(t *testing.T) string {
	if strings.Contains(t.Name(), "NewSubscriberReceivesOldMessages") {
		return watermill.NewShortUUID()
	}
	return "consumers"
}

// The entry of a message is that which watermill-redisstream's own Publisher writes, delayed or
// not.
func TestEntriesAreThoseOfRedisstream(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	theirs, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	ours := newStreamPublisher(t, server, redisdelay.StreamConfig{})

	texts := []string{"", "x", "ü\x00\xff", strings.Repeat("f", 31), strings.Repeat("8", 32), strings.Repeat("8", 255),
		strings.Repeat("g", 256), strings.Repeat("g", 65535), strings.Repeat("h", 65536)}
	many := func(n int) message.Metadata {
		metadata := message.Metadata{}
		for i := range n {
			metadata[fmt.Sprint("key ", i)] = fmt.Sprint("value ", i)
		}
		return metadata
	}
	all := []*message.Message{
		{}, {UUID: "no metadata", Payload: []byte("payload")}, {UUID: "nil", Metadata: nil}, {UUID: "a b:c 1 2 "},
		{UUID: "15", Metadata: many(15)}, {UUID: "16", Metadata: many(16)}, {UUID: "65536", Metadata: many(65536)},
	}
	for _, text := range texts {
		all = append(all, &message.Message{UUID: text, Payload: []byte(text), Metadata: message.Metadata{"key" + text: text}})
	}
	for i, msg := range all {
		for _, delay := range []time.Duration{0, 10 * time.Millisecond} {
			t.Run(fmt.Sprint(i, delay), func(t *testing.T) {
				original := message.NewMessage(msg.UUID, msg.Payload)
				original.Metadata = msg.Metadata
				same := original.Copy()
				if delay > 0 {
					redisdelay.DelayFor(same, delay)
				}
				name := fmt.Sprint(i, delay)
				require.NoError(t, theirs.Publish("theirs"+name, original))
				require.NoError(t, ours.Publish("ours"+name, same))
				require.Eventually(t, func() bool { return client.XLen(t.Context(), "ours"+name).Val() == 1 }, patience, time.Millisecond)
				want := client.XRange(t.Context(), "theirs"+name, "-", "+").Val()[0].Values
				have := client.XRange(t.Context(), "ours"+name, "-", "+").Val()[0].Values
				if len(msg.Metadata) > 1 { // theirs is in no order
					require.Len(t, have["metadata"], len(want["metadata"].(string)))
					var b bytes.Buffer
					require.NoError(t, msgpack.NewEncoder(&b).SortMapKeys(true).Encode(msg.Metadata))
					want["metadata"] = b.String()
				}
				require.True(t, assert.ObjectsAreEqual(want, have), "%.300q\n%.300q", want, have)
			})
		}
	}
}

// Metadata that watermill-redisstream refuses is refused here.
func TestMetadataThatRedisstreamKeepsIsRefused(t *testing.T) {
	server := redistest.Start(t)
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set(redisstream.UUIDHeaderKey, "2")
	_, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("topic", msg)
	require.ErrorContains(t, err, "reserved")
	require.ErrorContains(t, newStreamPublisher(t, server, redisdelay.StreamConfig{}).Publish("topic", msg), "reserved")
}
