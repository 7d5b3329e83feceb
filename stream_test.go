package redisdelay_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// streaming is the configuration of a Publisher into streams.
func streaming(config redisdelay.StreamConfig) func(*redisdelay.PublisherConfig) {
	return func(c *redisdelay.PublisherConfig) { c.Stream = &config }
}

var (
	scheduling    = streaming(redisdelay.StreamConfig{})
	notScheduling = streaming(redisdelay.StreamConfig{DisableScheduler: true})
)

// stream is the name of a topic, and so a key, that no other test has.
func stream(s redistest.Server) string { return s.Prefix + "-topic" }

// entries are the messages in the test's stream, with what the payload says.
func entries(t testing.TB, s redistest.Server) (found []*message.Message, payloads []string) {
	t.Helper()
	read, err := s.Client.XRange(ctx, stream(s), "-", "+").Result()
	require.NoError(t, err)
	for _, entry := range read {
		uuid, metadata := entry.Values["_watermill_message_uuid"].(string), entry.Values["metadata"].(string)
		payload := entry.Values["payload"].(string)
		msg, err := redisdelay.StreamMarshaler{}.Unmarshal("", []byte(strconv.Itoa(len(uuid))+" "+strconv.Itoa(len(metadata))+" "+uuid+metadata+payload))
		require.NoError(t, err)
		found = append(found, msg)
		payloads = append(payloads, payload)
	}
	return found, payloads
}

func awaitEntries(t testing.TB, s redistest.Server, n int) []*message.Message {
	t.Helper()
	eventually(t, func() bool { return s.Client.XLen(ctx, stream(s)).Val() >= int64(n) }, "entries")
	found, _ := entries(t, s)
	return found
}

func TestPublisherMovesDueMessagesIntoTheStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, scheduling)
		require.NoError(t, p.Publish(stream(s), text("now")))
		began := serverTime(t, s)
		require.NoError(t, p.Publish(stream(s), delayed("later", 150*time.Millisecond), delayed("soon", 50*time.Millisecond), text("at once")))
		awaitEntries(t, s, 4)
		late := serverTime(t, s).Sub(began) - 150*time.Millisecond
		require.Less(t, late, 4*time.Second, "it is told, and does not find out at the next poll")
		_, payloads := entries(t, s)
		require.Equal(t, []string{"now", "at once", "soon", "later"}, payloads)
		last := s.Client.XRevRangeN(ctx, stream(s), "+", "-", 1).Val()[0].ID
		ms, _, _ := strings.Cut(last, "-")
		require.GreaterOrEqual(t, ms, strconv.FormatInt(began.Add(150*time.Millisecond).UnixMilli(), 10))
	})
}

// A process that publishes nothing moves the messages of an earlier one.
func TestPublisherMovesMessagesOfOtherPublishers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, notScheduling)
		require.NoError(t, p.Publish(stream(s), delayed("x", 20*time.Millisecond)))
		require.NoError(t, p.Close())
		newPublisher(t, s, scheduling)
		awaitEntries(t, s, 1)
	})
}

func TestPublisherWithoutASchedulerLeavesItToOthers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, notScheduling)
		require.NoError(t, p.Publish(stream(s), text("1"), delayed("3", time.Millisecond)))
		eventually(t, func() bool { // what is due holds up what is published now
			require.NoError(t, p.Publish(stream(s), text("2")))
			return s.Client.HLen(ctx, s.Prefix+":{"+stream(s)+"}:messages").Val() > 1
		}, "something due")
		stop := schedule(t, s)
		eventually(t, func() bool { return !holds(s, "messages") }, "all in the stream")
		stop()
		_, payloads := entries(t, s)
		require.Equal(t, "1", payloads[0])
		require.Equal(t, []string{"3", "2"}, payloads[len(payloads)-2:])
	})
}

// holds tells whether the test's topic has a key.
func holds(s redistest.Server, key string) bool {
	return s.Client.Exists(ctx, s.Prefix+":{"+stream(s)+"}:"+key).Val() == 1
}

func TestClosedPublisherLeavesTheSchedulingToOthers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, scheduling)
		require.NoError(t, p.Publish(stream(s), delayed("x", time.Hour)))
		scheduler := func() string { return s.Client.HGet(ctx, s.Prefix+":{"+stream(s)+"}:scheduler", "holder").Val() }
		eventually(t, func() bool { return scheduler() != "" }, "it schedules")
		require.NoError(t, p.Close())
		require.Empty(t, scheduler())
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Publish(stream(s), text("y")), redisdelay.ErrClosed)
	})
}

func TestPublisherWithASchedulerClosesInTimeIfRedisDoesNotAnswer(t *testing.T) {
	s, in := private(t)
	p := newPublisher(t, s, scheduling, func(c *redisdelay.PublisherConfig) { c.CloseTimeout = 50 * time.Millisecond })
	publish(t, p, stream(s), "1")
	in.Pause()
	defer in.Resume()
	began := time.Now()
	if err := p.Close(); err != nil { // it may end all the same
		require.ErrorContains(t, err, "CloseTimeout")
	}
	require.Less(t, time.Since(began), 2*time.Second)
}

// Consumers of a stream see neither what was for Publish, nor what they have no use for.
func TestMetadataOfAnEntry(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, scheduling)
		one := delayed("1", time.Millisecond)
		redisdelay.SetDelayID(one, "name", redisdelay.DelayIDKeep)
		redisdelay.SetDelayIDWindow(one, time.Millisecond)
		redisdelay.ExpireAfter(one, time.Hour, redisdelay.ExpiryDead)
		redisdelay.SetMaxDeliveries(one, 3)
		one.Metadata.Set("kept", "as it is")
		two := text("2")
		delay.Message(two, delay.For(time.Millisecond))
		before := one.Copy()
		require.NoError(t, p.Publish(stream(s), one, two))
		require.True(t, one.Equals(before), "the message is the caller's")

		for _, got := range awaitEntries(t, s, 2) {
			want := message.Metadata{}
			if string(got.Payload) == "1" {
				want = message.Metadata{"kept": "as it is", "max_deliveries": "3"}
			}
			require.Equal(t, want, got.Metadata)
		}
	})
}

// DelayOnError makes the delay grow over the poison queue: each time the message comes out of the
// stream, it says how long it waited the last time.
func TestDelayGrowsWhenAMessageFailsAgain(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, scheduling)
		poison, err := middleware.PoisonQueue(p, stream(s))
		require.NoError(t, err)
		backoff := (&middleware.DelayOnError{InitialInterval: time.Millisecond, MaxInterval: time.Second, Multiplier: 3}).Middleware
		fail := poison(backoff(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("failed") }))

		first := delayed("x", time.Millisecond)
		require.NoError(t, p.Publish(stream(s), first))
		for i, want := range []string{"", "1ms", "3ms", "9ms"} {
			got := awaitEntries(t, s, i+1)[i]
			require.Equal(t, want, got.Metadata.Get(delay.DelayedForKey))
			_, err := fail(got)
			require.NoError(t, err)
		}
	})
}

func TestStreamConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	client := clientOf(t, "127.0.0.1:1")
	config := redisdelay.PublisherConfig{Client: client, Marshaler: redisdelay.JSONMarshaler{},
		Stream: &redisdelay.StreamConfig{MaxLen: -1, MaxDead: -4, MaxLens: map[string]int64{"b": -3, "a": -2, "c": 0}}}
	_, err := redisdelay.NewPublisher(config, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	for _, says := range []string{"Marshaler is a redisdelay.JSONMarshaler", "Stream.MaxLen is -1", `Stream.MaxLens["a"] is -2`, `Stream.MaxLens["b"] is -3`, "Stream.MaxDead is -4"} {
		require.ErrorContains(t, err, says)
	}
	config.Marshaler, config.Stream = redisdelay.StreamMarshaler{}, &redisdelay.StreamConfig{DisableScheduler: true}
	p, err := redisdelay.NewPublisher(config, nil)
	require.NoError(t, err)
	require.Zero(t, config.Stream.DeadRetention, "the configuration is the caller's")
	require.NoError(t, p.Close())
}

func TestNamesThatNoStreamMayHave(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, notScheduling)
		for _, topic := range []string{"", "100%", "a{b}", "}", s.Prefix + ":topics"} {
			require.ErrorIs(t, p.Publish(topic, text("x")), redisdelay.ErrInvalidTopic, topic)
		}
		require.Empty(t, keysOf(t, s))
	})
}

func TestATopicHasAStreamOrSubscribers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		streams, plain := newPublisher(t, s, scheduling), newPublisher(t, s)
		require.NoError(t, streams.Publish(stream(s), text("1"), delayed("2", time.Hour)))
		sub := newSubscriber(t, s)
		for range 2 {
			require.ErrorIs(t, plain.Publish(stream(s), text("x")), redisdelay.ErrTopicMode)
			require.ErrorIs(t, sub.SubscribeInitialize(stream(s)), redisdelay.ErrTopicMode)
			_, err := sub.Subscribe(ctx, stream(s))
			require.ErrorIs(t, err, redisdelay.ErrTopicMode)
		}

		require.NoError(t, plain.Publish("plain", delayed("3", time.Hour)))
		register(t, s, "subscribed", "a")
		for _, topic := range []string{"plain", "subscribed"} {
			require.ErrorIs(t, streams.Publish(topic, text("x")), redisdelay.ErrTopicMode)
		}
		require.NoError(t, plain.Publish("plain", text("4")))
		require.NoError(t, streams.Publish(stream(s), text("5")))
		_, payloads := entries(t, s)
		require.Equal(t, []string{"1", "5"}, payloads)

		// The topic begins anew when it is deleted, and so may be the other.
		a := newAdmin(t, s)
		for _, topic := range []string{"plain", stream(s)} {
			_, err := a.DeleteTopic(ctx, topic, admin.DeleteOptions{})
			require.NoError(t, err)
		}
		require.NoError(t, plain.Publish(stream(s), delayed("6", time.Hour)))
		require.ErrorIs(t, streams.Publish(stream(s), text("7")), redisdelay.ErrTopicMode)
	})
}

func newAdmin(t *testing.T, s redistest.Server) *admin.Admin {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return a
}

// A call may add more than Redis removes in one step by default.
func TestCallsLargerThanAStreamKeepItsLength(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, streaming(redisdelay.StreamConfig{MaxLen: 1000, DisableScheduler: true}),
			func(c *redisdelay.PublisherConfig) { c.MaxPublishMessages = 25_000 })
		for range 2 {
			publish(t, p, stream(s), numbered(0, 25_000)...)
			require.Less(t, s.Client.XLen(ctx, stream(s)).Val(), int64(1200))
		}
	})
}

// The largest number stands for no limit, too.
func TestTheLargestLengthOfAStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, streaming(redisdelay.StreamConfig{MaxLen: math.MaxInt64}))
		require.NoError(t, p.Publish(stream(s), text("now"), delayed("later", 20*time.Millisecond)))
		awaitEntries(t, s, 2)
	})
}

func TestStreamsHaveLengthsOfTheirOwn(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		other := stream(s) + "-other"
		p := newPublisher(t, s, streaming(redisdelay.StreamConfig{
			MaxLen: 100, MaxLens: map[string]int64{other: 0}, DisableScheduler: true,
		}))
		for range 5 {
			publish(t, p, stream(s), numbered(0, 100)...)
			publish(t, p, other, numbered(0, 100)...)
		}
		require.Less(t, s.Client.XLen(ctx, stream(s)).Val(), int64(400))
		require.GreaterOrEqual(t, s.Client.XLen(ctx, stream(s)).Val(), int64(100))
		require.EqualValues(t, 500, s.Client.XLen(ctx, other).Val())
	})
}

func TestConcurrentCallsIntoAStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, notScheduling)
		const callers, calls = 16, 20
		var ended []<-chan error
		for caller := range callers {
			ended = append(ended, begin(func() error {
				for n := range calls {
					if err := p.Publish(stream(s), text(fmt.Sprint(caller, " ", n))); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		for _, e := range ended {
			require.NoError(t, wait(t, e, "a caller"))
		}
		_, payloads := entries(t, s)
		next := map[string]int{}
		for _, payload := range payloads {
			caller, n, _ := strings.Cut(payload, " ")
			require.Equal(t, strconv.Itoa(next[caller]), n, "of caller %s", caller)
			next[caller]++
		}
		require.Len(t, payloads, callers*calls)
	})
}

// Operators see what waits for a stream, and what died on the way.
func TestOperatorsOfATopicWithAStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, a := newPublisher(t, s, scheduling), newAdmin(t, s)
		topic, far := stream(s), time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		named := delayed("named", time.Hour)
		redisdelay.SetDelayID(named, "order 1", redisdelay.DelayIDReject)
		redisdelay.ExpireAt(named, far.Add(time.Hour), redisdelay.ExpiryDrop)
		late := text("late")
		redisdelay.ExpireAt(late, far.Add(-2*time.Hour), redisdelay.ExpiryDead)
		late.Metadata.Set("kept", "as it is")
		require.NoError(t, p.Publish(topic, named, late, delayed("cancelled", time.Hour)))

		m, err := a.Get(ctx, topic, admin.ByDelayID("order 1"))
		require.NoError(t, err)
		require.Equal(t, "named", string(m.Payload))
		require.Empty(t, m.Metadata)
		require.Equal(t, "order 1", m.DelayID)
		require.True(t, m.ExpiresAt.Equal(far.Add(time.Hour)))
		require.Equal(t, redisdelay.ExpiryDrop, m.OnExpiry)

		dead := func() []admin.Message {
			page, err := a.List(ctx, topic, admin.Query{State: admin.Dead, Group: redisdelay.StreamGroup})
			require.NoError(t, err)
			return page.Messages
		}
		eventually(t, func() bool { return len(dead()) == 1 }, "a dead letter")
		require.Equal(t, message.Metadata{"kept": "as it is"}, dead()[0].Metadata)
		require.Equal(t, "not delivered in time", dead()[0].Places[0].Reason)

		stats, err := a.Stats(ctx, topic)
		require.NoError(t, err)
		require.True(t, stats.Stream)
		require.Equal(t, 2, stats.Waiting)
		require.Equal(t, 1, stats.Groups[0].Dead)
		idle, err := a.GroupsWithoutSubscribers(ctx, topic, 0)
		require.NoError(t, err)
		require.Empty(t, idle, "the stream's is in use")
		for _, dry := range []bool{true, false} {
			_, err = a.DeleteGroup(ctx, topic, redisdelay.StreamGroup, admin.DeleteOptions{DryRun: dry})
			require.ErrorIs(t, err, admin.ErrTopicMode)
		}
		spans, err := a.Upcoming(ctx, topic, admin.Load{Group: redisdelay.StreamGroup, Width: 2 * time.Hour, Buckets: 1})
		require.NoError(t, err)
		require.Equal(t, 2, spans[0].Waiting)

		page, err := a.List(ctx, topic, admin.Query{State: admin.Waiting, Filter: admin.Filter{Match: func(m admin.Message) bool { return string(m.Payload) == "cancelled" }}})
		require.NoError(t, err)
		require.NoError(t, a.Cancel(ctx, topic, admin.ByID(page.Messages[0].ID)))
		require.NoError(t, a.Reschedule(ctx, topic, admin.ByDelayID("order 1"), admin.When{}))
		require.NoError(t, a.Requeue(ctx, topic, admin.GroupMessage{Group: redisdelay.StreamGroup, ID: dead()[0].ID}))
		awaitEntries(t, s, 2)
		_, payloads := entries(t, s)
		require.ElementsMatch(t, []string{"named", "late"}, payloads)
		found, err := a.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, found.Violations())
	})
}

// A dead letter of a stream may go on to a topic with subscribers, in their form.
func TestDeadLettersOfAStreamMoveToSubscribers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, a := newPublisher(t, s, scheduling), newAdmin(t, s)
		late := text("late")
		late.Metadata.Set("kept", "as it is")
		redisdelay.ExpireAt(late, time.Now().Add(-time.Hour), redisdelay.ExpiryDead)
		require.NoError(t, p.Publish(stream(s), late))
		messages := subscribe(t, s, "rescued")
		eventually(t, func() bool {
			n, err := a.MoveDead(ctx, stream(s), admin.Bulk{Group: redisdelay.StreamGroup, To: "rescued"})
			require.NoError(t, err)
			return n == 1
		}, "a dead letter")
		got := receive(t, messages)
		require.Equal(t, late.UUID, got.UUID)
		require.Equal(t, "late", string(got.Payload))
		require.Equal(t, "as it is", got.Metadata.Get("kept"))
		got.Ack()
	})
}

func TestPausedTopicKeepsDueMessagesFromTheStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, a := newPublisher(t, s, scheduling), newAdmin(t, s)
		publish(t, p, stream(s), "1")
		_, err := a.Pause(ctx, stream(s), admin.PauseOptions{})
		require.NoError(t, err)
		require.NoError(t, p.Publish(stream(s), text("2"), delayed("3", time.Millisecond)))
		require.EqualValues(t, 1, s.Client.XLen(ctx, stream(s)).Val())
		eventually(t, func() bool { return due(t, s) == 2 }, "both are due")
		eventually(t, func() bool {
			ready, err := a.Ready(ctx, stream(s))
			return err == nil && ready.Topics[0].Lag == 0
		}, "that nobody takes it for late")
		_, err = a.Resume(ctx, stream(s), admin.ResumeOptions{})
		require.NoError(t, err)
		awaitEntries(t, s, 3)
		_, payloads := entries(t, s)
		require.Equal(t, []string{"1", "2", "3"}, payloads)
	})
}

// A pause may keep messages until it is too late for them.
func TestWhatIsDroppedAtAResumeIsLogged(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		logged := &logbook{}
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
			Client: s.Client, KeyPrefix: s.Prefix, Stream: &redisdelay.StreamConfig{},
		}, logged.logger())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		a := newAdmin(t, s)
		publish(t, p, stream(s), "first")
		_, err = a.Pause(ctx, stream(s), admin.PauseOptions{})
		require.NoError(t, err)
		var late []*message.Message
		for _, payload := range []string{"1", "2", "3"} {
			msg := text(payload)
			redisdelay.ExpireAt(msg, time.Now().Add(-time.Hour), redisdelay.ExpiryDrop)
			late = append(late, msg)
		}
		require.NoError(t, p.Publish(stream(s), append(late, text("kept"))...))
		_, err = a.Resume(ctx, stream(s), admin.ResumeOptions{})
		require.NoError(t, err)
		awaitEntries(t, s, 2)
		lines := func() (numbers []any) {
			for _, line := range logged.said("Messages had expired and were dropped") {
				require.Equal(t, "info", line.level)
				require.Equal(t, stream(s), line.fields["topic"])
				numbers = append(numbers, line.fields["messages"])
			}
			return numbers
		}
		eventually(t, func() bool { return len(lines()) > 0 }, "the scheduler tells")
		require.Equal(t, []any{3}, lines())
	})
}

// due is how many messages wait in the test's topic though they are due.
func due(t *testing.T, s redistest.Server) int64 {
	t.Helper()
	before := strconv.FormatInt(serverTime(t, s).UnixMilli()-1, 10) // and so have been for a while
	return s.Client.ZCount(ctx, s.Prefix+":{"+stream(s)+"}:pending", "-inf", before).Val()
}

func TestStreamsGoOnAfterTheServerLostAll(t *testing.T) {
	s, in := private(t, "--appendonly", "no")
	p := newPublisher(t, s, scheduling, func(c *redisdelay.PublisherConfig) { c.Client = clientOf(t, in.Addr()) })
	publish(t, p, stream(s), "1")
	require.NoError(t, s.Client.FlushAll(ctx).Err())
	require.NoError(t, p.Publish(stream(s), text("2"), delayed("3", 20*time.Millisecond)))
	awaitEntries(t, s, 2)
	in.Restart()
	eventually(t, func() bool { return p.Publish(stream(s), delayed("4", 20*time.Millisecond)) == nil }, "a publish")
	awaitEntries(t, s, 1)
}

// A key of another type at the stream's name is an error that names the type, and publishes
// nothing.
func TestKeyThatIsNoStream(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, scheduling)
		require.NoError(t, p.Publish(stream(s), delayed("1", time.Hour)))
		require.NoError(t, s.Client.Set(ctx, stream(s), "no stream", 0).Err())
		for _, msg := range []*message.Message{text("2"), delayed("3", time.Hour)} {
			require.ErrorContains(t, p.Publish(stream(s), msg), "WRONGTYPE")
		}
		require.NoError(t, newAdmin(t, s).Reschedule(ctx, stream(s), onlyPending(t, s), admin.In(0)))
		require.NoError(t, s.Client.Del(ctx, stream(s)).Err())
		awaitEntries(t, s, 1) // it was tried again
	})
}

// onlyPending is the only message that waits in the test's topic.
func onlyPending(t *testing.T, s redistest.Server) admin.Ref {
	t.Helper()
	ids := s.Client.ZRange(ctx, s.Prefix+":{"+stream(s)+"}:pending", 0, -1).Val()
	require.Len(t, ids, 1)
	return admin.ByID(ids[0])
}

// A logger of slog writes a field that was set twice two times.
func TestAPublishersSchedulerLogsAsItself(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		book := &logbook{}
		client := another(t, s)
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
			Client: client, KeyPrefix: s.Prefix, Stream: &redisdelay.StreamConfig{},
		}, book.logger())
		require.NoError(t, err)
		require.NoError(t, client.Close())
		eventually(t, func() bool { return book.count("error", "redisdelay.scheduler") > 0 }, "it says that it has no server")
		require.NoError(t, p.Close())
	})
}
