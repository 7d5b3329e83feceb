package redisdelay_test

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func broadcasting(c *redisdelay.SubscriberConfig) { c.Broadcast = true }

func expiringAfter(d time.Duration) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.BroadcastExpiry = d }
}

func TestBroadcastConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config redisdelay.SubscriberConfig
		fault  string // "": none
	}{
		"defaults":           {redisdelay.SubscriberConfig{Broadcast: true}, ""},
		"shortest expiry":    {redisdelay.SubscriberConfig{Broadcast: true, BroadcastExpiry: 2 * time.Minute}, ""},
		"too short expiry":   {redisdelay.SubscriberConfig{Broadcast: true, BroadcastExpiry: 2*time.Minute - 1}, "BroadcastExpiry is 1m59.999999999s; it has to be at least 2m0s"},
		"negative expiry":    {redisdelay.SubscriberConfig{Broadcast: true, BroadcastExpiry: -time.Hour}, "BroadcastExpiry is -1h0m0s; it has to be at least 2m0s"},
		"a group of its own": {redisdelay.SubscriberConfig{Broadcast: true, ConsumerGroup: "g"}, `ConsumerGroup is "g", but with Broadcast each subscription has a group of its own`},
		"default group":      {redisdelay.SubscriberConfig{Broadcast: true, ConsumerGroup: redisdelay.DefaultConsumerGroup}, `ConsumerGroup is "default"`},
		// Without Broadcast the expiry has no effect, but nonsense is nonsense.
		"expiry without Broadcast":           {redisdelay.SubscriberConfig{BroadcastExpiry: time.Hour}, ""},
		"too short expiry without Broadcast": {redisdelay.SubscriberConfig{BroadcastExpiry: time.Minute}, "BroadcastExpiry is 1m0s; it has to be at least 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Client = clientOf(t, "127.0.0.1:1")
			_, err := redisdelay.NewSubscriber(c.config, nil)
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
			require.ErrorContains(t, err, c.fault)
		})
	}
}

func TestEveryBroadcastSubscriptionGetsEveryMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		one, two := subscribe(t, s, "t", broadcasting), subscribe(t, s, "t", broadcasting)
		shared := subscribe(t, s, "t")
		publish(t, p, "t", "now")
		require.NoError(t, p.Publish("t", delayed("later", 20*time.Millisecond)))
		want := []string{"now", "later"}
		require.Equal(t, want, consume(t, one, 2))
		require.Equal(t, want, consume(t, two, 2))
		require.Equal(t, want, consume(t, shared, 2))
	})
}

// Each subscription has a group of its own, and so a limit of its own.
func TestEveryBroadcastSubscriptionHasTheLimit(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		limited := func(c *redisdelay.SubscriberConfig) { c.AtOnce, c.MaxInFlight = 2, 5 }
		one, two := subscribe(t, s, "t", broadcasting, limited), subscribe(t, s, "t", broadcasting, limited)
		publish(t, newPublisher(t, s), "t", "a", "b", "c")
		for _, messages := range []<-chan *message.Message{one, two} {
			first, second := receive(t, messages), receive(t, messages)
			group := deliveryOf(t, first).Group
			c := testkit.StateOf(t, s, "t", group)
			require.Equal(t, []int64{2, 1}, []int64{c.InHand, c.Ready}, group)
			second.Ack()
			third := receive(t, messages)
			require.Equal(t, "c", string(third.Payload))
			first.Ack()
			third.Ack()
		}
	})
}

func TestOverdueMessagesGoToTheFirstBroadcastSubscriptionOnly(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		publish(t, p, "t", "backlog")
		first := subscribe(t, s, "t", broadcasting)
		backlog := receive(t, first)
		second := subscribe(t, s, "t", broadcasting) // at the same moment it might get it too
		publish(t, p, "t", "new")
		require.Equal(t, []string{"new"}, consume(t, second, 1))
		require.Equal(t, "backlog", string(backlog.Payload))
		require.True(t, backlog.Ack())
		require.Equal(t, []string{"new"}, consume(t, first, 1))
	})
}

func TestABroadcastGroupEndsWithItsSubscription(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		sub := newSubscriber(t, s, broadcasting)
		require.NoError(t, sub.SubscribeInitialize("t"))
		messages, err := sub.Subscribe(t.Context(), "t")
		require.NoError(t, err)
		publish(t, p, "t", "in hand", "waiting")
		require.NoError(t, p.Publish("t", delayed("delayed", time.Hour)))
		receive(t, messages).Ack()

		require.NoError(t, sub.Close())
		keys := queue.NewKeys(s.Prefix, "t")
		require.Zero(t, s.Client.HLen(ctx, keys.Groups()).Val())
		require.Zero(t, s.Client.Exists(ctx, keys.Idle()).Val())
		require.Equal(t, int64(1), s.Client.HLen(ctx, keys.Messages()).Val(), "the one that is not due waits for the next group")
	})
}

func TestTwoSubscribesOfABroadcastSubscriberAreIndependent(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		sub := newSubscriber(t, s, broadcasting)
		lasting, cancel := context.WithCancel(ctx)
		defer cancel()
		one, err := sub.Subscribe(lasting, "t")
		require.NoError(t, err)
		two := subscribeTo(t, sub, "t")
		require.NoError(t, p.Publish("t", text("now"), text("again"), delayed("later", 20*time.Millisecond)))
		require.Equal(t, []string{"now", "again", "later"}, consume(t, one, 3))
		require.Equal(t, []string{"now", "again", "later"}, consume(t, two, 3))

		publish(t, p, "t", "last of one")
		require.Equal(t, []string{"last of one"}, consume(t, one, 1))
		msg := receive(t, two)
		cancel()
		requireClosed(t, one)
		keys := queue.NewKeys(s.Prefix, "t")
		require.Equal(t, []string{deliveryOf(t, msg).Group}, s.Client.HKeys(ctx, keys.Groups()).Val(), "only the other's group is left")
		require.Equal(t, []string{deliveryOf(t, msg).Group}, s.Client.ZRange(ctx, keys.Idle(), 0, -1).Val())
		require.True(t, msg.Ack())
		require.NoError(t, p.Publish("t", text("for two"), delayed("later for two", 20*time.Millisecond)))
		require.Equal(t, []string{"for two", "later for two"}, consume(t, two, 2))
	})
}

// The tests from here on move the clock of the server. The leases last for longer than that.

// clocked is a server whose clock a test sets ahead.
type clocked struct {
	redistest.Server
	move func(time.Duration)
}

// onMovedClock runs a test on an embedded server, whose clock stands still but for what the test
// moves it, and on a real one, whose clock goes on.
func onMovedClock(t *testing.T, test func(t *testing.T, s clocked)) {
	t.Helper()
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		s := embedded(t)
		s.Mini.SetTime(serverTime(t, s).Truncate(time.Millisecond)) // as times are rounded up to it
		test(t, clocked{s, func(d time.Duration) { jump(t, s, d) }})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		in := redistest.StartWithClock(t)
		s := redistest.On(t, in.Client(t), "test")
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		var ahead time.Duration
		test(t, clocked{s, func(d time.Duration) { ahead += d; in.SetClock(ahead) }})
	})
}

// subscribeScheduler subscribes the default group, in a process that does the topic's due-time work
// from now on.
func (s clocked) subscribeScheduler(t *testing.T) <-chan *message.Message {
	t.Helper()
	messages := subscribe(t, s.Server, "t", leaseOf(never))
	scheduler := queue.NewKeys(s.Prefix, "t").Scheduler()
	eventually(t, func() bool { return s.Client.HExists(ctx, scheduler, "holder").Val() }, "somebody schedules")
	return messages
}

// hasGroup tells whether a group exists.
func (s clocked) hasGroup(group string) bool {
	return s.Client.HExists(ctx, queue.NewKeys(s.Prefix, "t").Groups(), group).Val()
}

// end is when a group is removed if it is not used.
func (s clocked) end(t *testing.T, group string) time.Time {
	t.Helper()
	ms, err := s.Client.ZScore(ctx, queue.NewKeys(s.Prefix, "t").Idle(), group).Result()
	require.NoError(t, err)
	return time.UnixMilli(int64(ms))
}

// ends sees a group removed whose end has come: once more it is put off, and nobody claims
// meanwhile.
func (s clocked) ends(t *testing.T, group string) {
	t.Helper()
	stats := queue.NewKeys(s.Prefix, "t").Stats(group)
	eventually(t, func() bool { return s.Client.HExists(ctx, stats, "ending").Val() }, "the end is put off")
	require.True(t, s.hasGroup(group))
	s.move(s.end(t, group).Sub(serverTime(t, s.Server)))
	testkit.LookNow(t, s.Server)
	eventually(t, func() bool { return !s.hasGroup(group) }, "the group is removed")
}

// A Subscriber that has lost its client cannot remove its group. A scheduler does, BroadcastExpiry
// after its last sign of life, and not before. A subscription that lives keeps its group.
func TestABroadcastGroupOutlastsItsProcessForBroadcastExpiry(t *testing.T) {
	for name, c := range map[string]struct{ config, expiry time.Duration }{
		"default": {0, 5 * time.Minute},
		"set":     {7 * time.Minute, 7 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			onMovedClock(t, func(t *testing.T, s clocked) {
				scheduling := s.subscribeScheduler(t)
				ofExpiry := expiringAfter(c.config)
				living := subscribe(t, s.Server, "t", broadcasting, ofExpiry, leaseOf(never))
				client := another(t, s.Server)
				network := failing(client, s.Prefix)
				before := serverTime(t, s.Server)
				dying := subscribe(t, s.Server, "t", broadcasting, ofExpiry, leaseOf(never), through(client), closingWithin(tick))
				p := newPublisher(t, s.Server)
				publish(t, p, "t", "for all")
				group := deliveryOf(t, receive(t, dying)).Group
				require.False(t, s.end(t, group).Before(before.Add(c.expiry).Truncate(time.Millisecond)))
				require.False(t, s.end(t, group).After(serverTime(t, s.Server).Add(c.expiry)))
				network.cut(t, io.EOF) // or a call that was sent could take the scheduler's role after this
				require.NoError(t, client.Close(), "with a message in hand")
				othersGet := func(payload string) {
					t.Helper()
					require.Equal(t, []string{payload}, consume(t, scheduling, 1))
					require.Equal(t, []string{payload}, consume(t, living, 1))
				}
				othersGet("for all")

				step := time.Millisecond
				if s.Mini == nil {
					step = 30 * time.Second // its clock goes on
				}
				require.NoError(t, p.Publish("t", delayed("two steps before", c.expiry-2*step), delayed("one step before", c.expiry-step)))
				s.move(c.expiry - 2*step)
				testkit.LookNow(t, s.Server)
				othersGet("two steps before")
				s.move(step)
				testkit.LookNow(t, s.Server)
				othersGet("one step before")
				require.True(t, s.hasGroup(group), "two looks have left it alone")
				s.move(step)
				testkit.LookNow(t, s.Server)
				s.ends(t, group)
				messages := queue.NewKeys(s.Prefix, "t").Messages()
				eventually(t, func() bool { return s.Client.Exists(ctx, messages).Val() == 0 }, "with all that it held")
				publish(t, p, "t", "after")
				othersGet("after")
			})
		})
	}
}

// A handler that runs for longer than BroadcastExpiry, in a subscription that has no room for more,
// is no reason to take the group for a dead one's.
func TestAFullBroadcastSubscriptionKeepsItsGroup(t *testing.T) {
	const expiry, step = 2 * time.Minute, 80 * time.Second
	onMovedClock(t, func(t *testing.T, s clocked) {
		drained(t, s.Server)
		scheduling := s.subscribeScheduler(t)
		require.NoError(t, queue.NewTopic(servers.MustClient(s.Client), s.Prefix, "t").Register(ctx, "dead", queue.GroupOptions{Expiry: expiry}))
		full := subscribe(t, s.Server, "t", broadcasting, expiringAfter(expiry), leaseOf(never))
		p := newPublisher(t, s.Server)
		publish(t, p, "t", "in hand", "waiting")
		inHand := receive(t, full)
		group := deliveryOf(t, inHand).Group
		require.Equal(t, []string{"in hand", "waiting"}, consume(t, scheduling, 2))

		// It says so at its poll, without being woken.
		s.move(step)
		now := serverTime(t, s.Server)
		eventually(t, func() bool { return !s.end(t, group).Before(now.Add(expiry).Truncate(time.Millisecond)) }, "it is still in use")
		s.move(step)
		testkit.LookNow(t, s.Server)
		s.ends(t, "dead") // which was last used at the same time
		require.True(t, s.hasGroup(group))

		publish(t, p, "t", "later")
		require.True(t, inHand.Ack())
		require.Equal(t, []string{"waiting", "later"}, consume(t, full, 2))
		require.Equal(t, []string{"later"}, consume(t, scheduling, 1))
	})
}

// Nor is one that runs for so long while its subscription closes.
func TestAClosingSubscriptionKeepsItsGroupWhileAHandlerRuns(t *testing.T) {
	const expiry, step = 2 * time.Minute, 80 * time.Second
	for name, expiring := range map[string]func(*redisdelay.SubscriberConfig){
		"broadcast": func(c *redisdelay.SubscriberConfig) { c.Broadcast, c.BroadcastExpiry = true, expiry },
		"shared":    func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup, c.GroupExpiry = "shared", expiry },
	} {
		t.Run(name, func(t *testing.T) {
			onMovedClock(t, func(t *testing.T, s clocked) {
				scheduling := s.subscribeScheduler(t)
				require.NoError(t, queue.NewTopic(servers.MustClient(s.Client), s.Prefix, "t").Register(ctx, "dead", queue.GroupOptions{Expiry: expiry}))
				sub := newSubscriber(t, s.Server, expiring, leaseOf(never), closingWithin(never))
				messages := subscribeTo(t, sub, "t")
				publish(t, newPublisher(t, s.Server), "t", "in hand", "waiting")
				inHand := receive(t, messages)
				t.Cleanup(func() { inHand.Ack() }) // which Close waits for
				group := deliveryOf(t, inHand).Group
				require.Equal(t, []string{"in hand", "waiting"}, consume(t, scheduling, 2))
				closed := begin(sub.Close)

				s.move(step)
				now := serverTime(t, s.Server)
				eventually(t, func() bool { return !s.end(t, group).Before(now.Add(expiry).Truncate(time.Millisecond)) }, "it is still in use")
				s.move(step)
				testkit.LookNow(t, s.Server)
				s.ends(t, "dead") // which was last used at the same time
				require.True(t, s.hasGroup(group))

				require.True(t, inHand.Nack())
				require.NoError(t, wait(t, closed, "Close"))
				if group == "shared" {
					require.EqualValues(t, 2, stateOfGroup(t, s.Server, "t", group).Ready)
				} else {
					require.False(t, s.hasGroup(group), "it ends with its subscription")
				}
			})
		})
	}
}

// A message that falls due while the group is gone is lost to it, and so are those that waited for
// it.
func TestABroadcastSubscriptionThatWasCutOffForTooLongGoesOn(t *testing.T) {
	const expiry = 2 * time.Minute
	onMovedClock(t, func(t *testing.T, s clocked) {
		drained(t, s.Server)
		scheduling := s.subscribeScheduler(t)
		client := another(t, s.Server)
		claims, network := counter(client, ":claim:"), failing(client, s.Prefix)
		cutOff := subscribe(t, s.Server, "t", broadcasting, expiringAfter(expiry), leaseOf(never), through(client))
		p := newPublisher(t, s.Server)
		publish(t, p, "t", "before")
		msg := receive(t, cutOff)
		group := deliveryOf(t, msg).Group
		require.True(t, msg.Ack())
		require.Equal(t, []string{"before"}, consume(t, scheduling, 1))

		network.cut(t, io.EOF)
		testkit.LookNow(t, s.Server)
		eventually(t, func() bool { return claims.failures() > 0 }, "it is cut off")
		require.NoError(t, p.Publish("t", text("waiting for it"), delayed("in the gap", 270*time.Second), delayed("after", 390*time.Second)))
		require.Equal(t, []string{"waiting for it"}, consume(t, scheduling, 1))
		s.move(140 * time.Second)
		testkit.LookNow(t, s.Server)
		s.ends(t, group)
		s.move(20 * time.Second)
		testkit.LookNow(t, s.Server)
		require.Equal(t, []string{"in the gap"}, consume(t, scheduling, 1))

		network.fail(nil)
		now := serverTime(t, s.Server)
		testkit.LookNow(t, s.Server)
		eventually(t, func() bool { return s.hasGroup(group) }, "it registers its group again")
		require.False(t, s.end(t, group).Before(now.Add(expiry).Truncate(time.Millisecond)), "with its expiry")
		s.move(110 * time.Second)
		testkit.LookNow(t, s.Server)
		require.Equal(t, []string{"after"}, consume(t, cutOff, 1))
		require.Equal(t, []string{"after"}, consume(t, scheduling, 1))
		publish(t, p, "t", "new")
		require.Equal(t, []string{"new"}, consume(t, cutOff, 1))
		require.Equal(t, []string{"new"}, consume(t, scheduling, 1))
	})
}

// A subscription that may not use channels could not be woken.
func TestASubscribeThatFailsLeavesNoGroup(t *testing.T) {
	s, in := private(t)
	require.NoError(t, s.Client.Do(ctx, "ACL", "SETUSER", "mute", "on", "nopass", "allkeys", "resetchannels", "+@all").Err())
	mute := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: "mute", Password: "any"})
	t.Cleanup(func() { _ = mute.Close() })
	for _, change := range []func(*redisdelay.SubscriberConfig){broadcasting, inGroup("group")} {
		_, err := newSubscriber(t, s, through(mute), change).Subscribe(ctx, "topic")
		require.ErrorIs(t, err, redisdelay.ErrForbidden)
	}
	require.Empty(t, s.Client.Keys(ctx, "*").Val())
}

// The Subscriber is closed, and the caller's context has ended, when the group has just been made.
func TestABroadcastSubscribeThatComesTooLateLeavesNoGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		sub := newSubscriber(t, s, broadcasting, through(client))
		subscribing, cancel := context.WithCancel(ctx)
		defer cancel()
		groups := queue.NewKeys(s.Prefix, "t").Groups()
		endAll := sync.OnceFunc(func() {
			require.Len(t, s.Client.HKeys(ctx, groups).Val(), 1, "the group exists")
			require.NoError(t, sub.Close())
			cancel()
		})
		client.AddHook(redistest.AfterEach(func(call redis.Cmder) {
			if slices.Contains(call.Args(), any(queue.NewKeys(s.Prefix, "t").Idle())) {
				endAll()
			}
		}))
		_, err := sub.Subscribe(subscribing, "t")
		require.ErrorIs(t, err, redisdelay.ErrClosed)
		require.Error(t, subscribing.Err())
		require.Zero(t, s.Client.HLen(ctx, groups).Val())
		require.Zero(t, s.Client.Exists(ctx, queue.NewKeys(s.Prefix, "t").Idle()).Val())
	})
}
