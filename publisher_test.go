package redisdelay_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func newRing(t *testing.T) *redis.Ring {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"shard": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

func TestPublisherConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	client := clientOf(t, "127.0.0.1:1")
	var typedNil *redis.Client
	cases := map[string]struct {
		config redisdelay.PublisherConfig
		names  []string
	}{
		"nothing":          {redisdelay.PublisherConfig{}, []string{"Client is nil"}},
		"typed nil client": {redisdelay.PublisherConfig{Client: typedNil}, []string{"Client", "nil *redis.Client"}},
		"Ring":             {redisdelay.PublisherConfig{Client: newRing(t)}, []string{"Client", "*redis.Ring"}},
		"opening brace":    {redisdelay.PublisherConfig{Client: client, KeyPrefix: "a{b"}, []string{"KeyPrefix", `"a{b"`}},
		"closing brace":    {redisdelay.PublisherConfig{Client: client, KeyPrefix: "a}b"}, []string{"KeyPrefix", `"a}b"`}},
		"many messages":    {redisdelay.PublisherConfig{Client: client, MaxPublishMessages: 100_001}, []string{"MaxPublishMessages is 100001", "100000 at most"}},
		"all at once": {
			redisdelay.PublisherConfig{
				KeyPrefix: "{}", MaxMessageBytes: -1, MaxPublishMessages: -2, MaxPublishBytes: -3, CloseTimeout: -4,
				WaitReplicas: -5, WaitTimeout: -6,
			},
			[]string{"Client", "KeyPrefix", "MaxMessageBytes is -1", "MaxPublishMessages is -2",
				"MaxPublishBytes is -3", "CloseTimeout is -4ns", "WaitReplicas is -5", "WaitTimeout is -6ns"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := redisdelay.NewPublisher(c.config, nil)
			require.Nil(t, p)
			require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
			for _, named := range c.names {
				require.ErrorContains(t, err, named)
			}
			require.Equal(t, err.Error(), c.config.Validate().Error())
		})
	}
}

// As many messages as can be allowed, each with all the arguments that one can have.
func TestTheLargestPublish(t *testing.T) {
	s, in := private(t) // which this stops for a second or two
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s.Client = client
	const most = 100_000
	p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.MaxPublishMessages = most })
	messages := make([]*message.Message, most)
	for i := range messages {
		messages[i] = text("")
		redisdelay.DelayFor(messages[i], time.Hour+time.Duration(i)*time.Millisecond)
		redisdelay.SetMaxDeliveries(messages[i], 3)
		redisdelay.SetDelayID(messages[i], strconv.Itoa(i), redisdelay.DelayIDReplace)
	}
	require.NoError(t, p.Publish("t", messages...))
	require.EqualValues(t, most, stateOf(t, s, "t").Bodies)
}

// brokenMarshaler refuses every message with the payload "broken".
type brokenMarshaler struct{ redisdelay.BinaryMarshaler }

var errBroken = errors.New("broken by the test")

func (m brokenMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	if string(msg.Payload) == "broken" {
		return nil, errBroken
	}
	return m.BinaryMarshaler.Marshal(topic, msg)
}

func withMetadata(pairs ...string) *message.Message {
	msg := text("bad")
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	return msg
}

func TestBadInputPublishesNothing(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	cases := map[string]struct {
		topic    string
		messages []*message.Message
		sentinel error
		names    []string
	}{
		"empty topic":      {"", nil, redisdelay.ErrInvalidTopic, []string{"empty"}},
		"long topic":       {strings.Repeat("x", 513), nil, redisdelay.ErrInvalidTopic, []string{"513 bytes", "512"}},
		"large message":    {"t", []*message.Message{text(strings.Repeat("x", 1001))}, redisdelay.ErrMessageTooLarge, []string{"message 1 ", "MaxMessageBytes"}},
		"many messages":    {"t", slices.Repeat([]*message.Message{text("")}, 5), redisdelay.ErrPublishTooLarge, []string{"6 messages", "MaxPublishMessages"}},
		"many bytes":       {"t", slices.Repeat([]*message.Message{text(strings.Repeat("x", 900))}, 3), redisdelay.ErrPublishTooLarge, []string{"MaxPublishBytes"}},
		"malformed delay":  {"t", []*message.Message{withMetadata("delay", "soon")}, redisdelay.ErrInvalidDelay, []string{"message 1 ", "delay", `"soon"`}},
		"negative delay":   {"t", []*message.Message{withMetadata("delay", "-1s")}, redisdelay.ErrInvalidDelay, []string{"delay", `"-1s"`}},
		"overlong delay":   {"t", []*message.Message{withMetadata("delay", "876000h0m0.000000001s")}, redisdelay.ErrInvalidDelay, []string{"delay"}},
		"malformed until":  {"t", []*message.Message{withMetadata("delay_until", "tomorrow")}, redisdelay.ErrInvalidDelay, []string{"delay_until", `"tomorrow"`}},
		"far until":        {"t", []*message.Message{withMetadata("delay_until", "9999-01-01T00:00:00Z")}, redisdelay.ErrInvalidDelay, []string{"delay_until"}},
		"two delays":       {"t", []*message.Message{withMetadata("delay", "1s", "delay_until", "2026-01-01T00:00:00Z")}, redisdelay.ErrInvalidDelay, []string{"delay", "delay_until"}},
		"Watermill's":      {"t", []*message.Message{withMetadata(delay.DelayedUntilKey, "later")}, redisdelay.ErrInvalidDelay, []string{delay.DelayedUntilKey, `"later"`}},
		"max_deliveries":   {"t", []*message.Message{withMetadata("max_deliveries", "many")}, redisdelay.ErrInvalidMetadata, []string{"max_deliveries", `"many"`}},
		"no deliveries":    {"t", []*message.Message{withMetadata("max_deliveries", "0")}, redisdelay.ErrInvalidMetadata, []string{"max_deliveries"}},
		"many deliveries":  {"t", []*message.Message{withMetadata("max_deliveries", "2147483648")}, redisdelay.ErrInvalidMetadata, []string{"max_deliveries"}},
		"cannot marshal":   {"t", []*message.Message{text("broken")}, errBroken, []string{"message 1 ", "marshal"}},
		"cancelled before": {"t", []*message.Message{message.NewMessageWithContext(ended, "", nil)}, context.Canceled, nil},
	}
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) {
			c.Marshaler = brokenMarshaler{}
			c.MaxMessageBytes, c.MaxPublishMessages, c.MaxPublishBytes = 1000, 5, 2500
		})
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				err := p.Publish(c.topic, append([]*message.Message{text("good")}, c.messages...)...)
				require.ErrorIs(t, err, c.sentinel)
				for _, named := range c.names {
					require.ErrorContains(t, err, named)
				}
				require.Less(t, len(err.Error()), 500)
				require.Empty(t, keysOf(t, s))
			})
		}
	})
}

func TestAPublishThatIsTooLargeIsNotMarshaledToItsEnd(t *testing.T) {
	_, client := redistest.Embedded(t)
	started := make(chan string, 10)
	p := newPublisher(t, redistest.Server{Client: client, Prefix: "own"}, func(c *redisdelay.PublisherConfig) {
		c.Marshaler, c.MaxPublishBytes = startedMarshaler{started: started}, 250
	})
	err := p.Publish("t", slices.Repeat([]*message.Message{text(strings.Repeat("x", 100))}, 10)...)
	require.ErrorIs(t, err, redisdelay.ErrPublishTooLarge)
	require.ErrorContains(t, err, "of 10 messages, at most 250 are allowed (MaxPublishBytes)")
	require.LessOrEqual(t, len(started), 3)
}

func TestAPublishOfTheLargestSizeIsPublished(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		topic := strings.Repeat("x", redisdelay.MaxTopicLength)
		body, err := redisdelay.BinaryMarshaler{}.Marshal(topic, text("0123456789"))
		require.NoError(t, err)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) {
			c.MaxMessageBytes, c.MaxPublishMessages, c.MaxPublishBytes = len(body), 3, 3*len(body)
		})
		publish(t, p, topic, "0123456789", "abcdefghij", "ABCDEFGHIJ")
		group := strings.Repeat("g", redisdelay.MaxTopicLength)
		require.Equal(t, []string{"0123456789", "abcdefghij", "ABCDEFGHIJ"},
			consume(t, subscribe(t, s, topic, inGroup(group)), 3))
	})
}

func TestPublishingNothingDoesNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		require.NoError(t, newPublisher(t, s).Publish("t"))
		require.Empty(t, keysOf(t, s))
	})
}

func TestPublishRefusedByRedisWritesNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		register(t, s, "t", "a", "b")
		k := queue.NewKeys(s.Prefix, "t")
		for _, key := range []string{k.Messages(), k.Pending(), k.Options(), k.Refs(), k.Ready("b"), k.Retry("b"), k.Waiters("b")} {
			require.NoError(t, s.Client.Set(ctx, key, "of a wrong type", 0).Err())
			limited := withMetadata(redisdelay.MaxDeliveriesKey, "3")
			err := p.Publish("t", limited, delayed("later", never))
			require.ErrorContains(t, err, "WRONGTYPE", key)
			require.NoError(t, s.Client.Del(ctx, key).Err())
			require.Zero(t, stateOfGroup(t, s, "t", "a"), key)
			require.Zero(t, stateOfGroup(t, s, "t", "b"), key)
		}
	})
}

func TestAnyNameIsATopicAndAGroup(t *testing.T) {
	names := []string{
		"plain", "a:b", ":", "{", "}", "{}", "{a}", "}{", "a{b}c", "%", "%7B", "%25", "with space", " ",
		"new\nline", "\x00", "\xff\xfe", "Straße/日本語/🙂", "a|b", "*", "[a]?", "meta", "a:ready:b", "topics", "-1",
	}
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		subscriptions := map[string]<-chan *message.Message{}
		for _, name := range names {
			subscriptions[name] = subscribe(t, s, name, inGroup(name))
		}
		for _, name := range names {
			require.NoError(t, p.Publish(name, delayed("for "+name, 10*time.Millisecond)), "%q", name)
			publish(t, p, name, "now for "+name)
		}
		for _, name := range names {
			first, second := receive(t, subscriptions[name]), ""
			d := deliveryOf(t, first)
			require.Equal(t, name, d.Topic)
			require.Equal(t, name, d.Group)
			require.True(t, first.Ack())
			second = consume(t, subscriptions[name], 1)[0]
			require.ElementsMatch(t, []string{"for " + name, "now for " + name}, []string{string(first.Payload), second})
		}
	})
}

func TestAnyMessageArrivesAsItWas(t *testing.T) {
	for form, m := range marshalers {
		t.Run(form, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Marshaler = m })
				messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.Unmarshaler = m })

				bytes := rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")) })
				sent := []*message.Message{
					newMessage("", nil, nil),
					newMessage("", message.Metadata{}, []byte{}),
					newMessage("same", message.Metadata{"": ""}, []byte("\x00")),
					newMessage("same", message.Metadata{"\xff": "\xfe\n"}, []byte("\r\n$-1\r\n")),
					newMessage("same", message.Metadata{"k": "v"}, []byte("same")),
					newMessage("same", message.Metadata{"k": "v"}, []byte("same")),
					newMessage(sampleUUID, nil, slices.Repeat([]byte{0xff}, 100_000)),
				}
				for i := range 20 {
					sent = append(sent, newMessage(bytes.Example(i),
						message.Metadata{bytes.Example(i + 100): bytes.Example(i + 200)}, []byte(bytes.Example(i+300))))
				}
				require.NoError(t, p.Publish("t", sent...))
				for i, want := range sent {
					got := receive(t, messages)
					require.True(t, want.Equals(got), "message %d: want %v, got %v", i, want, got)
					require.NotNil(t, got.Metadata)
					require.True(t, got.Ack())
				}
			})
		})
	}
}

func TestPublishDoesNotChangeMessages(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		bare := newMessage("", nil, nil)
		full := withMetadata("delay", "1h", delay.DelayedForKey, "1s", "max_deliveries", "3", "other", "x")
		before := full.Copy()
		full.SetContext(delay.WithContext(ctx, delay.For(never)))
		context := full.Context()
		require.NoError(t, p.Publish("t", bare, full))
		require.Nil(t, bare.Metadata)
		require.Nil(t, bare.Payload)
		require.True(t, before.Equals(full))
		require.Equal(t, context, full.Context())
		for _, msg := range []*message.Message{bare, full} {
			select {
			case <-msg.Acked():
				require.Fail(t, "acked")
			case <-msg.Nacked():
				require.Fail(t, "nacked")
			default:
			}
		}
	})
}

func TestALostReplyDoesNotDouble(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		network := newProxy(t, s)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = network.client(t) })
		messages := subscribe(t, s, "t")
		publish(t, p, "t", "before") // the server has the scripts now
		require.Equal(t, []string{"before"}, consume(t, messages, 1))

		for lost := 1; lost <= 3; lost++ { // the client tries four times
			network.loseReplies(lost, ":publisher:", func() {})
			publish(t, p, "t", "a", "b")
			require.Zero(t, network.left())
			require.Equal(t, []string{"a", "b"}, consume(t, messages, 2))
		}

		// The message is consumed before the client asks again.
		consumed := make(chan struct{})
		network.loseReplies(1, ":publisher:", func() { <-consumed })
		published := begin(func() error { return p.Publish("t", text("c")) })
		require.Equal(t, []string{"c"}, consume(t, messages, 1))
		eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "the ack")
		close(consumed)
		require.NoError(t, wait(t, published, "the repeated call"))

		publish(t, p, "t", "after")
		require.Equal(t, []string{"after"}, consume(t, messages, 1))
	})
}

func TestALostReplyOfTheFirstCallDoesNotDouble(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		publish(t, newPublisher(t, s), "other", "so that the server has the script")
		require.Equal(t, 1, len(consume(t, subscribe(t, s, "other"), 1)))
		network := newProxy(t, s)
		network.loseReplies(1, ":publisher:", func() {
			register(t, s, "t") // the set of groups changes before the client asks again
		})
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = network.client(t) })
		publish(t, p, "t", "a", "b")
		require.Zero(t, network.left())
		publish(t, p, "t", "c")
		require.Equal(t, []string{"a", "b", "c"}, consume(t, subscribe(t, s, "t"), 3))
	})
}

func TestPublisherClosesOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		publish(t, p, "t", "kept")
		var closes []<-chan error
		for range 10 {
			closes = append(closes, begin(p.Close))
		}
		for _, closed := range closes {
			require.NoError(t, wait(t, closed, "Close"))
		}
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Publish("t", text("refused")), redisdelay.ErrClosed)
		require.ErrorIs(t, p.Publish("t"), redisdelay.ErrClosed)
		require.NoError(t, s.Client.Ping(ctx).Err(), "the client is the caller's")
		require.EqualValues(t, 1, stateOf(t, s, "t").Bodies)
	})
}

func TestPublisherCloseWaitsForCallsUnderWay(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, held, started, first := gated(t, s)
		second := begin(func() error { return p.Publish("t", text("second")) })
		wait(t, started, "the second call")
		closed := begin(p.Close)
		eventually(t, func() bool { return errors.Is(p.Publish("t"), redisdelay.ErrClosed) }, "Close")
		select {
		case <-closed:
			require.Fail(t, "Close did not wait")
		default:
		}
		held.open()
		require.NoError(t, <-first)
		require.NoError(t, wait(t, closed, "Close"))
		// It began before Close, or was refused.
		if err := <-second; err != nil {
			require.ErrorIs(t, err, redisdelay.ErrClosed)
		}
	})
}

func TestPublisherCloseGivesUpInTime(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		held := gate(t, client)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) {
			c.Client, c.CloseTimeout = client, 50*time.Millisecond
		})
		stuck := begin(func() error { return p.Publish("t", text("x")) })
		wait(t, held.arrived, "the call")
		require.ErrorContains(t, wait(t, begin(p.Close), "Close"), "CloseTimeout")
		require.ErrorIs(t, wait(t, stuck, "the call that was given up"), redisdelay.ErrClosed)
		require.NoError(t, p.Close())
	})
}

func TestPublishingWhileClosingIsDoneOrRefused(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		var mu sync.Mutex
		var published int64
		var wg sync.WaitGroup
		going := make(chan struct{}, 1000)
		for range 8 {
			wg.Go(func() {
				for {
					if err := p.Publish("t", text("x")); err != nil {
						assert.ErrorIs(t, err, redisdelay.ErrClosed)
						return
					}
					mu.Lock()
					published++
					mu.Unlock()
					select {
					case going <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 20 {
			wait(t, going, "publishing")
		}
		require.NoError(t, p.Close())
		wg.Wait()
		require.Equal(t, published, stateOf(t, s, "t").Bodies)
	})
}
