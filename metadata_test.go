package redisdelay_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func named(payload, id string, mode redisdelay.DelayIDMode, d time.Duration) *message.Message {
	msg := delayed(payload, d)
	redisdelay.SetDelayID(msg, id, mode)
	return msg
}

func adminOf(t testing.TB, s redistest.Server) *admin.Admin {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return a
}

func TestHelpersSetTheMetadataThatPublishReads(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		msg := named("x", "order 1", redisdelay.DelayIDKeep, time.Hour)
		redisdelay.SetDelayIDWindow(msg, time.Minute)
		redisdelay.SetMaxDeliveries(msg, 3)
		redisdelay.SetBackoff(msg, time.Second, time.Minute)
		redisdelay.ExpireAt(msg, time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC), redisdelay.ExpiryDrop)
		redisdelay.ExpireAfter(msg, 90*time.Second, redisdelay.ExpiryDead)
		before := msg.Copy()
		require.NoError(t, redisdelay.CheckMetadata(msg))
		require.NoError(t, p.Publish("topic", msg))
		require.Equal(t, before.Metadata, msg.Metadata, "messages are not changed")

		m, err := adminOf(t, s).Get(ctx, "topic", admin.ByDelayID("order 1"))
		require.NoError(t, err)
		require.Equal(t, "order 1", m.DelayID)
		require.Equal(t, 3, m.MaxDeliveries)
		require.Equal(t, time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC), m.ExpiresAt.UTC())
		require.Equal(t, 90*time.Second, m.MaxLateness)
		require.Equal(t, redisdelay.ExpiryDead, m.OnExpiry)
		require.Equal(t, message.Metadata{"max_deliveries": "3", "backoff": "1s..1m0s"}, m.Metadata)
	})
}

// An earlier call on the same message does not count any more.
func TestTheEmptyModeIsTheDefault(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		require.NoError(t, p.Publish("topic", named("old", "order 1", redisdelay.DelayIDReplace, time.Hour)))
		msg := named("new", "order 1", redisdelay.DelayIDReject, time.Hour)
		redisdelay.ExpireAfter(msg, time.Minute, redisdelay.ExpiryDrop)
		redisdelay.SetDelayID(msg, "order 1", "")
		redisdelay.ExpireAfter(msg, 2*time.Minute, "")
		redisdelay.ExpireAt(msg, time.Now().Add(-time.Minute), "")
		require.NoError(t, redisdelay.CheckMetadata(msg))
		require.NoError(t, p.Publish("topic", msg))
		m, err := adminOf(t, s).Get(ctx, "topic", admin.ByDelayID("order 1"))
		require.NoError(t, err)
		require.Equal(t, "new", string(m.Payload), "it replaced the other")
		require.NotEqual(t, redisdelay.ExpiryDrop, m.OnExpiry)
		require.NotEqual(t, redisdelay.ExpiryDead, m.OnExpiry)

		late := text("late")
		redisdelay.ExpireAt(late, time.Now().Add(-time.Minute), "")
		messages := subscribe(t, s, "another")
		require.NoError(t, p.Publish("another", late))
		require.Equal(t, []string{"late"}, consume(t, messages, 1), "it is delivered")
	})
}

func TestMalformedMetadataIsRefusedWithItsName(t *testing.T) {
	t.Parallel()
	const id = redisdelay.DelayIDKey
	for _, metadata := range []message.Metadata{
		{id: ""}, {id: strings.Repeat("x", redisdelay.MaxDelayIDLength+1)},
		{redisdelay.DelayIDModeKey: "keep"}, {redisdelay.DelayIDModeKey: "other", id: "x"},
		{redisdelay.DelayIDWindowKey: "1m"}, {redisdelay.DelayIDWindowKey: "-1m", id: "x"}, {redisdelay.DelayIDWindowKey: "1", id: "x"},
		{redisdelay.ExpiresAtKey: "tomorrow"}, {redisdelay.MaxLatenessKey: "0s"}, {redisdelay.MaxLatenessKey: "x"},
		{redisdelay.MaxLatenessKey: "900000h"}, {redisdelay.OnExpiryKey: "drop"},
		{redisdelay.OnExpiryKey: "explode", redisdelay.MaxLatenessKey: "1s"},
		{redisdelay.BackoffKey: ""}, {redisdelay.BackoffKey: "-1s"}, {redisdelay.BackoffKey: "1m..1s"}, {redisdelay.BackoffKey: "1s.."},
		{redisdelay.BackoffKey: "1s..900000h"}, {redisdelay.BackoffKey: "1s..2s..3s"},
	} {
		msg := text("x")
		msg.Metadata = metadata
		err := redisdelay.CheckMetadata(msg)
		require.ErrorIs(t, err, redisdelay.ErrInvalidMetadata, "%v", metadata)
		named := false
		for key, value := range metadata {
			named = named || strings.Contains(err.Error(), "metadata "+key+" is "+fmt.Sprintf("%.20q", value)[:2])
		}
		require.True(t, named, "%v: %v", metadata, err)
	}
	require.ErrorIs(t, redisdelay.CheckMetadata(&message.Message{Metadata: message.Metadata{"delay": "x"}}), redisdelay.ErrInvalidDelay)
}

// The check that needs no Redis says word for word what Publish says, of all faults at once.
func TestCheckMetadataAndPublishAgree(t *testing.T) {
	s := embedded(t)
	p := newPublisher(t, s)
	soon := time.Now().Add(time.Hour)
	type set func(*message.Message)
	delayFor := func(d time.Duration) set { return func(m *message.Message) { redisdelay.DelayFor(m, d) } }
	until := func(at time.Time) set { return func(m *message.Message) { redisdelay.DelayUntil(m, at) } }
	name := func(id string, mode redisdelay.DelayIDMode) set {
		return func(m *message.Message) { redisdelay.SetDelayID(m, id, mode) }
	}
	window := func(d time.Duration) set { return func(m *message.Message) { redisdelay.SetDelayIDWindow(m, d) } }
	deliveries := func(n int) set { return func(m *message.Message) { redisdelay.SetMaxDeliveries(m, n) } }
	written := func(key, value string) set { return func(m *message.Message) { m.Metadata.Set(key, value) } }
	backoff := func(first, last time.Duration) set {
		return func(m *message.Message) { redisdelay.SetBackoff(m, first, last) }
	}
	expireAt := func(at time.Time, then redisdelay.OnExpiry) set {
		return func(m *message.Message) { redisdelay.ExpireAt(m, at, then) }
	}
	expireAfter := func(d time.Duration, then redisdelay.OnExpiry) set {
		return func(m *message.Message) { redisdelay.ExpireAfter(m, d, then) }
	}
	watermills := func(d delay.Delay) set { return func(m *message.Message) { delay.Message(m, d) } }
	inContext := func(d delay.Delay) set {
		return func(m *message.Message) { m.SetContext(delay.WithContext(m.Context(), d)) }
	}
	for what, c := range map[string]struct {
		set    []set
		faults []string // the keys that are wrong
	}{
		"nothing":              {},
		"all":                  {[]set{delayFor(time.Minute), name("all", redisdelay.DelayIDKeep), window(time.Hour), deliveries(3), backoff(0, time.Hour), expireAt(soon, redisdelay.ExpiryDrop), expireAfter(time.Second, redisdelay.ExpiryDead)}, nil},
		"the limits":           {[]set{delayFor(redisdelay.MaxDelay), name(strings.Repeat("x", redisdelay.MaxDelayIDLength), ""), window(redisdelay.MaxDelay), deliveries(math.MaxInt32), backoff(redisdelay.MaxDelay, redisdelay.MaxDelay), expireAfter(redisdelay.MaxDelay, "")}, nil},
		"the least":            {[]set{delayFor(0), name("x", ""), window(0), deliveries(math.MinInt32), backoff(0, 0), expireAt(time.Time{}, ""), expireAfter(time.Millisecond, "")}, nil},
		"a past instant":       {[]set{until(time.Now().Add(-time.Hour))}, nil},
		"a past expiry":        {[]set{expireAt(time.Now().Add(-time.Hour), redisdelay.ExpiryDrop)}, nil},
		"negative delay":       {[]set{delayFor(-1)}, []string{"delay"}},
		"overlong delay":       {[]set{delayFor(redisdelay.MaxDelay + 1)}, []string{"delay"}},
		"zero instant":         {[]set{until(time.Time{})}, []string{"delay_until"}},
		"far instant":          {[]set{until(time.Now().Add(redisdelay.MaxDelay + time.Hour))}, []string{"delay_until"}},
		"two delays":           {[]set{delayFor(1), func(m *message.Message) { m.Metadata.Set(redisdelay.DelayUntilKey, "x") }}, []string{"delay"}},
		"Watermill's":          {[]set{watermills(delay.Until(time.Time{}))}, []string{delay.DelayedUntilKey}},
		"in the context":       {[]set{inContext(delay.Until(time.Time{}))}, []string{delay.DelayedUntilKey}},
		"no name":              {[]set{name("", "")}, []string{"delay_id"}},
		"overlong name":        {[]set{name(strings.Repeat("x", redisdelay.MaxDelayIDLength+1), "")}, []string{"delay_id"}},
		"unknown mode":         {[]set{name("x", "other")}, []string{"delay_id_mode"}},
		"negative window":      {[]set{name("x", ""), window(-1)}, []string{"delay_id_window"}},
		"window without name":  {[]set{window(1)}, []string{"delay_id_window"}},
		"no delivery":          {[]set{deliveries(0)}, []string{"max_deliveries"}},
		"many deliveries":      {[]set{written(redisdelay.MaxDeliveriesKey, "2147483648")}, []string{"max_deliveries"}},
		"few deliveries":       {[]set{written(redisdelay.MaxDeliveriesKey, "-2147483649")}, []string{"max_deliveries"}},
		"negative backoff":     {[]set{backoff(-1, 1)}, []string{"backoff"}},
		"falling backoff":      {[]set{backoff(2, 1)}, []string{"backoff"}},
		"overlong backoff":     {[]set{backoff(1, redisdelay.MaxDelay+1)}, []string{"backoff"}},
		"unknown end":          {[]set{expireAt(soon, "explode")}, []string{"on_expiry"}},
		"far expiry":           {[]set{expireAt(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), "")}, []string{"expires_at"}},
		"delay beyond its end": {[]set{until(soon), expireAt(soon, redisdelay.ExpiryDead)}, []string{"expires_at"}},
		"no lateness":          {[]set{expireAfter(0, "")}, []string{"max_lateness"}},
		"overlong lateness":    {[]set{expireAfter(redisdelay.MaxDelay+1, "")}, []string{"max_lateness"}},
		"everything": {
			[]set{delayFor(-1), name("", "other"), window(-1), deliveries(0), backoff(2, 1), expireAt(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), ""), expireAfter(0, "explode")},
			[]string{"delay", "max_deliveries", "backoff", "delay_id", "delay_id_mode", "delay_id_window", "expires_at", "max_lateness", "on_expiry"},
		},
		"late, and one more": {
			[]set{until(soon), expireAt(soon, redisdelay.ExpiryDrop), deliveries(0)}, []string{"max_deliveries", "expires_at"},
		},
	} {
		msg := message.NewMessage("uuid", nil)
		for _, set := range c.set {
			set(msg)
		}
		checked, published := redisdelay.CheckMetadata(msg), p.Publish("topic", msg)
		if c.faults == nil {
			require.NoError(t, checked, what)
			require.NoError(t, published, what)
			continue
		}
		require.EqualError(t, published, `publish to topic "topic": message 0 (UUID "uuid"): `+checked.Error(), what)
		var keys []string
		for _, line := range strings.Split(checked.Error(), "\n") {
			keys = append(keys, regexp.MustCompile(`^invalid (?:delay|metadata): metadata (\S+) is "`).FindStringSubmatch(line)[1])
		}
		require.Equal(t, c.faults, keys, what)
		for _, sentinel := range []error{redisdelay.ErrInvalidDelay, redisdelay.ErrInvalidMetadata, redisdelay.ErrPastExpiry} {
			require.Equal(t, errors.Is(checked, sentinel), errors.Is(published, sentinel), what)
		}
		require.True(t, errors.Is(checked, redisdelay.ErrInvalidDelay) || errors.Is(checked, redisdelay.ErrInvalidMetadata), what)
	}
	require.ErrorIs(t, redisdelay.CheckMetadata(nil), redisdelay.ErrNilMessage)
	require.ErrorIs(t, p.Publish("topic", nil), redisdelay.ErrNilMessage)
}

func TestHandlerSchedulesItsSuccessorUnderItsOwnDelayID(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "topic")
		p := newPublisher(t, s)
		require.NoError(t, p.Publish("topic", named("1", "series", redisdelay.DelayIDReject, 5*time.Millisecond)))
		for i := 1; i <= 5; i++ {
			msg := receive(t, messages)
			require.Equal(t, fmt.Sprint(i), string(msg.Payload))
			require.Equal(t, "series", deliveryOf(t, msg).DelayID)
			for key := range msg.Metadata {
				require.NotContains(t, key, "delay_id", "it is for Redis only")
			}
			if i < 5 {
				successor := named(fmt.Sprint(i+1), deliveryOf(t, msg).DelayID, redisdelay.DelayIDReject, 5*time.Millisecond)
				require.NoError(t, p.Publish("topic", successor))
			}
			require.True(t, msg.Ack())
		}
	})
}

// Debouncing: of many in a row, the last one comes.
func TestLastOfManyUnderOneDelayIDIsDelivered(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		messages := subscribe(t, s, "topic")
		p := newPublisher(t, s)
		for _, payload := range numbered(0, 19) {
			require.NoError(t, p.Publish("topic", named(payload, "x", redisdelay.DelayIDReplace, never)))
		}
		require.NoError(t, p.Publish("topic", named("0019", "x", redisdelay.DelayIDReplace, 100*time.Millisecond)))
		require.Equal(t, []string{"0019"}, consume(t, messages, 1))
	})
}

// Calls that wait go to Redis together; the one that is refused must not take the others with it.
func TestRefusalOfOneCallIsNotThatOfOthers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		register(t, s, "topic")
		p := newPublisher(t, s)
		require.NoError(t, p.Publish("topic", named("first", "x", redisdelay.DelayIDReject, never)))
		const calls = 200
		errs := make([]error, calls)
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				if i%10 == 0 {
					errs[i] = p.Publish("topic", delayed("beside", never), named("refused", "x", redisdelay.DelayIDReject, never))
				} else {
					errs[i] = p.Publish("topic", delayed("taken", never))
				}
			})
		}
		wg.Wait()
		for i, err := range errs {
			if i%10 == 0 {
				require.ErrorIs(t, err, redisdelay.ErrExists)
			} else {
				require.NoError(t, err)
			}
		}
		require.EqualValues(t, 1+calls*9/10, stateOf(t, s, "topic").Waiting)
	})
}

func TestTopicIsFilledToItsLimitAndNotBeyond(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		register(t, s, "topic")
		const limit = 50
		var wg sync.WaitGroup
		var mu sync.Mutex
		published, refused := 0, 0
		for range 4 {
			p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.MaxWaiting = limit })
			for range 20 {
				wg.Go(func() {
					err := p.Publish("topic", delayed("x", never))
					mu.Lock()
					defer mu.Unlock()
					if errors.Is(err, redisdelay.ErrTopicFull) {
						refused++
					} else if err == nil {
						published++
					}
				})
			}
		}
		wg.Wait()
		require.Equal(t, limit, published)
		require.Equal(t, 80-limit, refused)
		require.EqualValues(t, limit, stateOf(t, s, "topic").Bodies)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.MaxWaiting = limit + 1 })
		require.ErrorIs(t, p.Publish("topic", text("1"), text("2")), redisdelay.ErrTopicFull)
		require.NoError(t, p.Publish("topic", text("1")))
		stats, err := newAdmin(t, s).Stats(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, refused+2, stats.Counters.RefusedFull)
	})
}

func TestExpiredMessageIsDroppedOrDeadLettered(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		register(t, s, "topic")
		p := newPublisher(t, s)
		for _, then := range []redisdelay.OnExpiry{redisdelay.ExpiryDeliver, redisdelay.ExpiryDrop, redisdelay.ExpiryDead} {
			msg := text(string(then))
			redisdelay.ExpireAt(msg, time.Now().Add(-time.Minute), then)
			require.NoError(t, p.Publish("topic", msg))
		}
		require.Equal(t, []string{"deliver"}, consume(t, subscribe(t, s, "topic"), 1))
		eventually(t, func() bool { return stateOf(t, s, "topic") == state{Bodies: 1, Dead: 1} }, "the others are too late")
		eventually(t, func() bool {
			stats, err := adminOf(t, s).Stats(ctx, "topic")
			require.NoError(t, err)
			return stats.Groups[0].Counters.Dropped == 1 && stats.Groups[0].Counters.Delivered == 1
		}, "the subscription tells what it did")
		page, err := adminOf(t, s).List(ctx, "topic", admin.Query{State: admin.Dead})
		require.NoError(t, err)
		require.Equal(t, "dead", string(page.Messages[0].Payload))
		require.Equal(t, "not delivered in time", page.Messages[0].Places[0].Reason)
		require.Zero(t, page.Messages[0].Places[0].Deliveries, "nobody got it")
	})
}

func TestPublishRefusesADelayBeyondTheExpiry(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		wrong := delayed("wrong", time.Hour)
		redisdelay.ExpireAt(wrong, time.Now().Add(time.Minute), redisdelay.ExpiryDrop)
		for _, err := range []error{p.Publish("topic", text("right"), wrong), redisdelay.CheckMetadata(wrong)} {
			require.ErrorIs(t, err, redisdelay.ErrPastExpiry)
			require.ErrorIs(t, err, redisdelay.ErrInvalidMetadata)
			require.ErrorContains(t, err, "expires_at")
		}
		_, err := adminOf(t, s).Stats(ctx, "topic")
		require.ErrorIs(t, err, admin.ErrNotFound, "nothing was published")
		redisdelay.DelayFor(wrong, time.Second)
		require.NoError(t, p.Publish("topic", wrong))
	})
}

// It is too late by the clock of the server, whatever that of the program says; at each delivery
// anew.
func TestExpiryFollowsTheServersClock(t *testing.T) {
	s := embedded(t)
	s.Mini.SetTime(time.Date(2040, time.March, 4, 12, 0, 0, 0, time.UTC))
	register(t, s, "topic")
	p := newPublisher(t, s)
	for payload, at := range map[string]time.Time{
		"too late": time.Date(2039, time.March, 4, 12, 0, 0, 0, time.UTC),
		"in time":  time.Date(2040, time.March, 4, 13, 0, 0, 0, time.UTC),
	} {
		msg := text(payload)
		redisdelay.ExpireAt(msg, at, redisdelay.ExpiryDead)
		require.NoError(t, p.Publish("topic", msg))
	}
	after := text("in time after due")
	redisdelay.ExpireAfter(after, time.Hour, redisdelay.ExpiryDead)
	redisdelay.DelayFor(after, 0)
	require.NoError(t, p.Publish("topic", after))

	messages := subscribe(t, s, "topic")
	msg := receive(t, messages)
	require.Equal(t, "in time", string(msg.Payload))
	require.Empty(t, msg.Metadata, "what Redis needs consumers do not see")
	jump(t, s, 2*time.Hour)
	msg.Nack()
	eventually(t, func() bool { return stateOf(t, s, "topic").Dead >= 2 }, "it is too late for it now")
	eventually(t, func() bool { return stateOf(t, s, "topic").Ready == 0 }, "the rest is taken")
}

// A consumer that does not read lets a message wait that was offered to it in time.
func TestAMessageExpiresWhileTheConsumerDoesNotTakeIt(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "topic", inFlight(1))
		p := newPublisher(t, s)
		first := text("in time")
		redisdelay.ExpireAfter(first, time.Hour, redisdelay.ExpiryDrop)
		require.NoError(t, p.Publish("topic", first))
		require.True(t, receive(t, messages).Ack())

		expiring := func(then redisdelay.OnExpiry) {
			msg := text(string(then))
			redisdelay.ExpireAfter(msg, 200*time.Millisecond, then)
			require.NoError(t, p.Publish("topic", msg))
		}
		expiring(redisdelay.ExpiryDrop)
		eventually(t, func() bool { return stateOf(t, s, "topic").InHand == 1 }, "it is claimed in time")
		eventually(t, func() bool { return stateOf(t, s, "topic").Bodies == 0 }, "it is dropped")
		expiring(redisdelay.ExpiryDead)
		eventually(t, func() bool { return stateOf(t, s, "topic").Dead == 1 }, "it is a dead letter")
		expiring(redisdelay.ExpiryDeliver)
		late := serverTime(t, s).Add(201 * time.Millisecond)
		eventually(t, func() bool { return serverTime(t, s).After(late) }, "it is too late")
		require.Equal(t, []string{"deliver"}, consume(t, messages, 1))
		eventually(t, func() bool {
			stats, err := adminOf(t, s).Stats(ctx, "topic")
			require.NoError(t, err)
			return stats.Groups[0].Counters.Dropped == 1 && stats.Groups[0].Counters.Delivered == 2
		}, "the subscription tells what it did")
	})
}

// A copy that a poison queue publishes is a message of its own.
func TestPoisonedMessageIsNeitherDroppedNorReplaced(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		poison, err := middleware.PoisonQueue(p, "poison")
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: soon}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddMiddleware(poison, redisdelay.KeepError)
		router.AddConsumerHandler("handler", "topic", newSubscriber(t, s), func(*message.Message) error { return errors.New("poison") })
		poisoned := subscribe(t, s, "poison")
		go func() { _ = router.Run(ctx) }()
		<-router.Running()
		defer router.Close()

		for _, payload := range []string{"1", "2"} {
			msg := named(payload, "x", redisdelay.DelayIDKeep, 0)
			redisdelay.ExpireAfter(msg, time.Hour, redisdelay.ExpiryDrop)
			require.NoError(t, p.Publish("topic", msg))
		}
		require.ElementsMatch(t, []string{"1", "2"}, consume(t, poisoned, 2))
		require.Empty(t, s.Client.HGetAll(ctx, s.Prefix+":{poison}:options").Val())
	})
}

func TestMessageHasABackoffOfItsOwn(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "topic", func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return never }
		})
		msg := text("x")
		redisdelay.SetBackoff(msg, 20*time.Millisecond, 20*time.Millisecond)
		require.NoError(t, newPublisher(t, s).Publish("topic", msg))
		first := receive(t, messages)
		first.Nack()
		again := receive(t, messages)
		require.Equal(t, 2, deliveryOf(t, again).Number)
		require.True(t, again.Ack())
	})
}

func TestErrorOfTheHandlerIsKeptWithRetryAndDeadLetter(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribe(t, s, "topic", func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return 10 * time.Millisecond }
		})
		msg := text("x")
		redisdelay.SetMaxDeliveries(msg, 3)
		require.NoError(t, newPublisher(t, s).Publish("topic", msg))
		fail := redisdelay.KeepError(func(msg *message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("the bank said %q", strings.Repeat("no", 1000))
		})
		succeed := redisdelay.KeepError(func(msg *message.Message) ([]*message.Message, error) { return nil, nil })

		received := receive(t, messages)
		_, err := fail(received)
		require.Error(t, err)
		received.Nack()
		received = receive(t, messages)
		m, err := adminOf(t, s).Get(ctx, "topic", admin.ByID(deliveryOf(t, received).ID))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(m.Places[0].Reason, `the bank said "nono`), m.Places[0].Reason)
		require.Len(t, m.Places[0].Reason, 1024)

		_, _ = fail(received)
		_, _ = succeed(received) // Watermill's Retry, for instance
		received.Nack()
		received = receive(t, messages)
		m, err = adminOf(t, s).Get(ctx, "topic", admin.ByID(deliveryOf(t, received).ID))
		require.NoError(t, err)
		require.Empty(t, m.Places[0].Reason)

		_, _ = fail(received)
		received.Nack()
		eventually(t, func() bool { return stateOf(t, s, "topic").Dead == 1 }, "it is dead")
		page, err := adminOf(t, s).List(ctx, "topic", admin.Query{State: admin.Dead, Filter: admin.Filter{Reason: "the bank said"}})
		require.NoError(t, err)
		require.Len(t, page.Messages, 1)
		require.True(t, strings.HasPrefix(page.Messages[0].Places[0].Reason, "nacked on the last of 3 deliveries: the bank"))
		require.Equal(t, 3, page.Messages[0].Places[0].Deliveries)
		_, err = fail(text("of no subscription"))
		require.Error(t, err)
	})
}

func TestGroupEndsSomeTimeAfterItsLastSubscriber(t *testing.T) {
	s := embedded(t)
	sub := newSubscriber(t, s, inGroup("mortal"), func(c *redisdelay.SubscriberConfig) { c.GroupExpiry = 2 * time.Minute })
	messages := subscribeTo(t, sub, "topic")
	publish(t, newPublisher(t, s), "topic", "x")
	require.Equal(t, []string{"x"}, consume(t, messages, 1))
	require.NoError(t, sub.Close())
	stop := schedule(t, s)
	defer stop()
	groups := func() int64 { return s.Client.HLen(ctx, s.Prefix+":{topic}:groups").Val() }
	require.EqualValues(t, 1, groups())
	pass := func(d time.Duration) {
		jump(t, s, d)
		for _, mailbox := range s.Mini.PubSubChannels(s.Prefix + ":mailbox:*") {
			s.Mini.Publish(mailbox, "*")
		}
	}
	pass(3 * time.Minute)
	eventually(t, func() bool { return s.Client.HExists(ctx, s.Prefix+":{topic}:stats:mortal", "ending").Val() }, "the end is put off")
	require.EqualValues(t, 1, groups())
	pass(2 * time.Minute)
	eventually(t, func() bool { return groups() == 0 }, "the group is removed")
}

func TestGroupExpiryIsChecked(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	for _, config := range []redisdelay.SubscriberConfig{
		{GroupExpiry: time.Minute}, {GroupExpiry: -1}, {GroupExpiry: time.Hour, Broadcast: true},
	} {
		config.Client = client
		require.ErrorContains(t, config.Validate(), "GroupExpiry")
	}
	require.NoError(t, redisdelay.SubscriberConfig{Client: client, GroupExpiry: time.Hour}.Validate())
}

// caseVariants counts the keys of inAnotherCase.
var caseVariants atomic.Uint32

// inAnotherCase returns a key of which this process has not had that form.
func inAnotherCase() string {
	key, n := []byte(redisdelay.DelayIDWindowKey), caseVariants.Add(1)
	for i, letter := range key {
		if letter == '_' {
			continue
		}
		if n&1 == 1 {
			key[i] -= 'a' - 'A'
		}
		n >>= 1
	}
	return string(key)
}

func TestAKeyInAnotherCaseIsLoggedOnceInAProcess(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		book := &logbook{}
		publishers := map[string]*redisdelay.Publisher{}
		for name, logger := range map[string]watermill.LoggerAdapter{"none": nil, "first": book.logger(), "second": book.logger()} {
			p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, logger)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			publishers[name] = p
		}
		key := inAnotherCase()
		msg := text("x")
		msg.Metadata.Set(key, "1h")
		msg.Metadata.Set("name", "order.placed")
		require.NoError(t, publishers["none"].Publish("t", msg), "which cannot tell")
		for range 3 {
			require.NoError(t, publishers["first"].Publish("t", msg, msg))
			require.NoError(t, publishers["second"].Publish("t", msg))
		}
		logged := book.find("error", "redisdelay.publisher")
		require.Len(t, logged, 1)
		require.Contains(t, logged[0].text, "differs from a known one in case")
		require.EqualError(t, logged[0].err, fmt.Sprintf("the key is %q, want %q", key, "delay_id_window"))
		require.Equal(t, "t", logged[0].fields["topic"])
		require.Equal(t, msg.UUID, logged[0].fields["message_uuid"])
	})
}
