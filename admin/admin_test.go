package admin_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestConfigurationAndArgumentsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := admin.New(admin.Config{KeyPrefix: "{x}"})
	require.ErrorIs(t, err, admin.ErrInvalidConfig)
	require.ErrorContains(t, err, "Client")
	require.ErrorContains(t, err, "KeyPrefix")

	_, client := redistest.Embedded(t)
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	s.register(t, "a")
	for name, err := range map[string]error{
		"empty ref":        s.admin.Cancel(ctx, topic, admin.Ref{}),
		"overlong delay":   s.admin.Reschedule(ctx, topic, admin.ByID("x"), admin.In(redisdelay.MaxDelay+1)),
		"zero instant":     s.admin.Reschedule(ctx, topic, admin.ByID("x"), admin.At(time.Time{})),
		"instant of 1970":  s.admin.Reschedule(ctx, topic, admin.ByID("x"), admin.At(time.Unix(0, 0))),
		"overlong instant": s.admin.Reschedule(ctx, topic, admin.ByID("x"), admin.At(time.Now().Add(redisdelay.MaxDelay+time.Hour))),
		"no width":         only(s.admin.Upcoming(ctx, topic, admin.Load{Buckets: 1})),
		"too many buckets": only(s.admin.Upcoming(ctx, topic, admin.Load{Width: 1, Buckets: 1001})),
		"no state":         only(s.admin.List(ctx, topic, admin.Query{})),
		"cursor of a list": only(s.admin.List(ctx, topic, admin.Query{State: admin.Dead, Cursor: "12"})),
		"move to itself":   only(s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: topic})),
		"cursor of Topics": func() error { _, _, err := s.admin.Topics(ctx, "x", 1); return err }(),
	} {
		require.ErrorIs(t, err, admin.ErrInvalidArgument, name)
	}
	require.ErrorIs(t, s.admin.Cancel(ctx, "", admin.ByID("x")), admin.ErrInvalidTopic)
	require.ErrorIs(t, s.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "unknown", ID: "x"}), admin.ErrNotFound)
	require.ErrorIs(t, only(s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "unknown"})), admin.ErrNotFound)
	require.ErrorIs(t, only(s.admin.DeleteGroup(ctx, topic, "unknown", admin.DeleteOptions{})), admin.ErrNotFound)
	require.ErrorIs(t, only(s.admin.Ready(ctx, "unknown")), admin.ErrNotFound)
	require.ErrorIs(t, only(s.admin.List(ctx, topic, admin.Query{State: admin.Dead, Group: "unknown"})), admin.ErrNotFound)
	require.ErrorIs(t, only(s.admin.List(ctx, "unknown", admin.Query{State: admin.Waiting})), admin.ErrNotFound)
	require.NoError(t, only(s.admin.List(ctx, topic, admin.Query{State: admin.Waiting, Group: "unknown"})))
	require.ErrorIs(t, only(s.admin.Upcoming(ctx, topic, admin.Load{Width: 1, Buckets: 1, Group: "unknown"})), admin.ErrNotFound)
	require.NoError(t, only(s.admin.Upcoming(ctx, topic, admin.Load{Width: 1, Buckets: 1})), "no group is asked for")
}

// A time in the past means now, for In as for At.
func TestThePastIsNow(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t)
		for name, when := range map[string]admin.When{
			"zero": {}, "in 0": admin.In(0), "in -1h": admin.In(-time.Hour), "in the least": admin.In(math.MinInt64),
			"at now": admin.At(time.Now()), "an hour ago": admin.At(time.Now().Add(-time.Hour)),
			"at the earliest": admin.At(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)),
		} {
			msg := message.NewMessage(name, nil)
			redisdelay.DelayFor(msg, time.Hour)
			require.NoError(t, p.Publish(topic, msg))
			before := s.list(t, "", admin.Waiting)
			require.Len(t, before, 1)
			require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByID(before[0].ID), when), name)
			stats, err := s.admin.Stats(ctx, topic)
			require.NoError(t, err)
			m, err := s.admin.Get(ctx, topic, admin.ByID(before[0].ID))
			require.NoError(t, err)
			require.WithinDuration(t, stats.Now, m.Places[0].At, time.Minute, name)
			require.False(t, m.Places[0].At.After(stats.Now), "%s: it is due", name)
			require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByID(before[0].ID)))
		}
	})
}

func TestTopicsAreListedInPages(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t)
		want := map[string]bool{}
		for i := range 1000 {
			name := fmt.Sprint("topic ", i)
			want[name] = true
			require.NoError(t, p.Publish(name, delayed("x", time.Hour)))
		}
		for cursor := ""; ; {
			topics, next, err := s.admin.Topics(ctx, cursor, 100)
			require.NoError(t, err)
			require.LessOrEqual(t, len(topics), 1000)
			for _, name := range topics {
				delete(want, name)
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		require.Empty(t, want)
	})
}

// bury makes dead letters of group a.
func (s *setup) bury(t *testing.T, n int) {
	t.Helper()
	s.register(t, "a")
	for done := 0; done < n; {
		var messages []*message.Message
		for i := range min(1000, n-done) {
			msg := text(fmt.Sprintf("%05d", done+i))
			msg.Metadata.Set("kind", []string{"even", "odd"}[i%2])
			messages = append(messages, msg)
		}
		s.buryThese(t, messages...)
		done += len(messages)
	}
	require.Equal(t, n, s.group(t, "a").Dead)
}

// buryThese makes messages dead letters of group a, whatever their limits. The group must have no
// other ready messages.
func (s *setup) buryThese(t *testing.T, messages ...*message.Message) {
	t.Helper()
	require.NoError(t, s.publisher(t).Publish(topic, messages...))
	s.buryReady(t, len(messages))
}

func (s *setup) buryReady(t *testing.T, n int) {
	t.Helper()
	s.buryFor(t, n, func(int) string { return "for a reason" })
}

// buryFor makes dead letters of n ready messages, each for a reason.
func (s *setup) buryFor(t *testing.T, n int, reason func(i int) string) {
	t.Helper()
	group := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group("a")
	c := queue.Claim{Subscription: queue.Token(), Number: 1, Limit: 1000, Lease: time.Hour, Bytes: 1 << 30}
	call := group.ClaimCall(c)
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
	claimed, err := c.ReadClaim(call.Cmd())
	require.NoError(t, err)
	require.Len(t, claimed.Messages, n)
	var failures []queue.Failure
	for i := range claimed.Messages {
		failures = append(failures, queue.Failure{Leased: &claimed.Messages[i], Dead: true, Reason: reason(i)})
	}
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls(failures)...))
}

// expired returns messages that have expired, one for each OnExpiry.
func expired() []*message.Message {
	var messages []*message.Message
	for _, then := range []redisdelay.OnExpiry{redisdelay.ExpiryDrop, redisdelay.ExpiryDead} {
		msg := text(string(then))
		redisdelay.ExpireAt(msg, time.Now().Add(-time.Hour), then)
		redisdelay.ExpireAfter(msg, time.Millisecond, then)
		messages = append(messages, msg)
	}
	return messages
}

// A nack of a requeued dead letter does not make its expiry apply again either.
func TestRequeuedDeadLetterNeverExpires(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		s.buryThese(t, expired()...)
		messages := s.subscribe(t, "a", func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return 5 * time.Millisecond }
		})
		dead := s.list(t, "a", admin.Dead)
		require.NoError(t, s.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: dead[0].ID}))
		n, err := s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for delivery := range 3 {
			var got []string
			for range 2 {
				msg := receive(t, messages)
				require.Empty(t, msg.Metadata, "what Redis needs consumers do not see")
				got = append(got, string(msg.Payload))
				if delivery < 2 {
					require.True(t, msg.Nack())
				} else {
					require.True(t, msg.Ack())
				}
			}
			if delivery == 0 {
				require.ElementsMatch(t, []string{"drop", "dead"}, got)
			}
		}
		eventually(t, func() bool { return s.stats(t).Messages == 0 }, "all are acked")
		require.Zero(t, s.group(t, "a").Counters.Dropped)
	})
}

// opaque unmarshals JSON and cannot marshal. It refuses one body, and overwrites the bytes, as it
// may.
type opaque struct{}

func (opaque) Unmarshal(topic string, data []byte) (*message.Message, error) {
	defer clear(data)
	if strings.Contains(string(data), "refused") {
		return nil, redisdelay.ErrMalformed
	}
	msg, err := redisdelay.JSONMarshaler{}.Unmarshal(topic, data)
	if err == nil {
		msg.Payload = []byte(string(msg.Payload))
	}
	return msg, err
}

func TestMovedDeadLettersHaveNeitherDelayIDNorExpiry(t *testing.T) {
	for name, forms := range map[string]admin.Config{
		"the Unmarshaler is a Marshaler too": {Unmarshaler: redisdelay.JSONMarshaler{}},
		"each is one half":                   {Unmarshaler: opaque{}, Marshaler: redisdelay.JSONMarshaler{}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				forms := forms
				forms.Client, forms.KeyPrefix = s.Client, s.Prefix
				a, err := admin.New(forms)
				require.NoError(t, err)
				s.register(t, "a")
				p := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Marshaler = redisdelay.JSONMarshaler{} })
				published := append(expired(), text("named"), text("plain"), text("refused"))
				redisdelay.SetDelayID(published[2], "name", redisdelay.DelayIDKeep)
				for _, msg := range published {
					msg.Metadata.Set("key", "value")
					redisdelay.SetMaxDeliveries(msg, 3)
				}
				require.NoError(t, p.Publish(topic, published...))
				s.buryReady(t, len(published))
				messages, err := s.subscriber(t, "", func(c *redisdelay.SubscriberConfig) {
					c.Unmarshaler = redisdelay.JSONMarshaler{}
				}).Subscribe(ctx, "other")
				require.NoError(t, err)
				n, err := a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other"})
				require.NoError(t, err)
				require.Equal(t, len(published), n)
				for _, want := range published {
					msg := receive(t, messages)
					require.Equal(t, want.UUID, msg.UUID)
					require.Equal(t, want.Payload, msg.Payload)
					require.Equal(t, message.Metadata{"key": "value", redisdelay.MaxDeliveriesKey: "3"}, msg.Metadata)
					delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
					require.Empty(t, delivery.DelayID)
					require.True(t, msg.Ack())
				}
			})
		})
	}
}

func TestManyDeadLettersAreHandledInChunks(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		const n = 2500
		s.bury(t, n)
		var progress []admin.Progress
		bulk := admin.Bulk{
			Group:    "a",
			Filter:   admin.Filter{Metadata: map[string]string{"kind": "even"}, Reason: "reason"},
			Progress: func(p admin.Progress) { progress = append(progress, p) },
		}
		requeued, err := s.admin.RequeueAll(ctx, topic, bulk)
		require.NoError(t, err)
		require.Equal(t, n/2, requeued)
		require.Equal(t, []admin.Progress{{Looked: 1000, Done: 500}, {Looked: 2000, Done: 1000}, {Looked: 2500, Done: 1250}}, progress)
		require.Equal(t, n/2, s.group(t, "a").Retrying)

		moved, err := s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other", Filter: admin.Filter{Match: func(m admin.Message) bool {
			return strings.HasPrefix(string(m.Payload), "00")
		}}})
		require.NoError(t, err)
		require.Equal(t, 500, moved)
		other, err := s.admin.Stats(ctx, "other")
		require.NoError(t, err)
		require.Equal(t, 500, other.Messages)

		purged, err := s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "a"})
		require.NoError(t, err)
		require.Equal(t, 750, purged)
		require.Equal(t, n/2, s.stats(t).Messages)
	})
}

// Two such bodies do not fit into one chunk.
func TestBodiesOfDeadLettersAreReadOnlyIfNeeded(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		var letters []*message.Message
		for range 2 {
			letters = append(letters, message.NewMessage("uuid", make([]byte, 3<<20)))
		}
		s.register(t, "a")
		s.buryThese(t, letters...)
		var progress []admin.Progress
		bulk := func(f admin.Filter) admin.Bulk {
			progress = nil
			return admin.Bulk{Group: "a", Filter: f, Progress: func(p admin.Progress) { progress = append(progress, p) }}
		}
		for name, f := range map[string]admin.Filter{
			"metadata": {Metadata: map[string]string{"kind": "none"}},
			"match":    {Match: func(m admin.Message) bool { return len(m.Payload) == 1 }},
		} {
			none, err := s.admin.PurgeDead(ctx, topic, bulk(f))
			require.NoError(t, err)
			require.Zero(t, none, name)
			require.Len(t, progress, 2, name)
		}
		now := s.stats(t).Now
		requeued, err := s.admin.RequeueAll(ctx, topic, bulk(admin.Filter{Metadata: map[string]string{}, Reason: "reason", From: now.Add(-time.Hour), Until: now.Add(time.Hour)}))
		require.NoError(t, err)
		require.Equal(t, 2, requeued)
		require.Equal(t, []admin.Progress{{Looked: 2, Done: 2}}, progress, "in one chunk")
	})
}

func TestMovedDeadLettersAreDeliveredInTheTargetTopic(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 3)
		sub := s.subscriber(t, "")
		messages, err := sub.Subscribe(ctx, "other")
		require.NoError(t, err)
		require.NoError(t, only(s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other"})))
		for i := range 3 {
			msg := receive(t, messages)
			require.Equal(t, fmt.Sprintf("%05d", i), string(msg.Payload))
			delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
			require.False(t, delivery.Redelivered, "it is a new message")
			require.True(t, msg.Ack())
		}
	})
}

// RequeueAll ends even though each message becomes dead again at once.
func TestRequeueAllIgnoresNewDeadLetters(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		const n = 50
		s.bury(t, n)
		messages := s.subscribe(t, "a", func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 1 })
		go func() {
			for msg := range messages {
				msg.Nack()
			}
		}()
		for range 3 {
			eventually(t, func() bool { return s.group(t, "a").Dead == n }, "all are dead again")
			requeued, err := s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a"})
			require.NoError(t, err)
			require.LessOrEqual(t, requeued, n)
		}
		eventually(t, func() bool { return s.group(t, "a").Dead == n }, "all are dead again")
	})
}

func TestMessageIsFoundInEachGroup(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "acked", "ready")
		nacked := s.subscribe(t, "nacked")
		held := s.subscribe(t, "held")
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		msg := receive(t, nacked)
		redisdelay.DelayFor(msg, time.Hour)
		msg.Nack()
		inHand := receive(t, held)
		eventually(t, func() bool { return s.group(t, "nacked").Retrying == 1 }, "it is nacked")
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		states := func() map[string]admin.State {
			m, err := s.admin.Get(ctx, topic, admin.ByID(delivery.ID))
			require.NoError(t, err)
			require.Equal(t, "x", string(m.Payload))
			found := map[string]admin.State{}
			for _, p := range m.Places {
				found[p.Group] = p.State
			}
			return found
		}
		require.Equal(t, map[string]admin.State{"nacked": admin.Retrying, "held": admin.InHand, "acked": admin.Ready, "ready": admin.Ready}, states())
		receive(t, s.subscribe(t, "acked")).Ack()
		eventually(t, func() bool { g := s.group(t, "acked"); return g.Ready+g.InHand == 0 }, "it is acked")
		require.Equal(t, map[string]admin.State{"nacked": admin.Retrying, "held": admin.InHand, "acked": admin.Unknown, "ready": admin.Unknown}, states())
		receive(t, s.subscribe(t, "ready")).Ack()
		eventually(t, func() bool { g := s.group(t, "ready"); return g.Ready+g.InHand == 0 }, "it is acked")
		require.Equal(t, map[string]admin.State{"nacked": admin.Retrying, "held": admin.InHand}, states())
		inHand.Ack()
	})
}

func TestPauseStopsAllProcessesAndResumeStartsThem(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		const processes, rounds = 8, 3
		received := make(chan *message.Message)
		for range processes {
			client := redis.NewClient(s.Client.(*redis.Client).Options())
			t.Cleanup(func() { _ = client.Close() })
			messages := s.subscribe(t, "a", func(c *redisdelay.SubscriberConfig) { c.Client = client })
			go func() {
				for msg := range messages {
					received <- msg
				}
			}()
		}
		eventually(t, func() bool { return s.group(t, "a").Subscribed }, "they wait")
		p := s.publisher(t)
		for range rounds {
			require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{})))
			for i := range processes {
				require.NoError(t, p.Publish(topic, text(fmt.Sprint(i))))
			}
			select {
			case msg := <-received:
				require.Fail(t, "delivered while paused", "%s", msg.Payload)
			case <-time.After(50 * time.Millisecond):
			}
			require.Equal(t, processes, s.group(t, "a").Ready)
			resumed := time.Now()
			was, err := s.admin.Resume(ctx, topic, admin.ResumeOptions{})
			require.NoError(t, err)
			require.True(t, was)
			for range processes {
				receive(t, received).Ack()
			}
			require.Less(t, time.Since(resumed), 3*time.Second, "they were woken, and did not poll")
		}
	})
}

func TestPauseOutlastsARestartOfTheServer(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := setupOn(t, redistest.Server{Client: in.Client(t), Prefix: "own"})
	s.register(t, "a")
	pause, err := s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a"), By: "ann b", Why: "ä deploy, 5 min", For: time.Hour})
	require.NoError(t, err)
	in.Restart()
	eventually(t, func() bool { return s.Client.Ping(ctx).Err() == nil }, "it is back")
	require.Equal(t, &pause, s.group(t, "a").Pause)
}

// The access lists in docs/redis-keys.md suffice: the first for programs, both together for
// operators.
func TestUsersOfTheDocumentedAccessListsMayDoEverything(t *testing.T) {
	t.Parallel()
	require.Greater(t, len(documentedRules(t)), 40)
	root := redistest.Start(t).Client(t)
	for i, command := range documentedCommands(t, redisdelay.DefaultKeyPrefix) {
		if i != onAClusterBesides {
			require.NoError(t, root.Do(ctx, command...).Err())
		}
	}
	client := redis.NewClient(&redis.Options{Addr: root.(*redis.Client).Options().Addr, Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	s := setupOn(t, redistest.Server{Client: client, Prefix: redisdelay.DefaultKeyPrefix})

	s.bury(t, 5)
	messages := s.subscribe(t, "a")
	msg := delayed("x", time.Hour)
	redisdelay.SetDelayID(msg, "x", redisdelay.DelayIDReplace)
	require.NoError(t, s.publisher(t).Publish(topic, msg, delayed("y", time.Hour)))
	require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByDelayID("x"), admin.In(time.Minute)))
	require.NoError(t, only(s.admin.Get(ctx, topic, admin.ByDelayID("x"))))
	require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID("x")))
	require.NoError(t, only(s.admin.Upcoming(ctx, topic, admin.Load{Width: time.Hour, Buckets: 2})))
	dead := s.list(t, "a", admin.Dead)
	require.NoError(t, s.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: dead[0].ID}))
	receive(t, messages).Ack()
	require.NoError(t, s.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "a", ID: dead[1].ID}))
	require.NoError(t, only(s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other"})))
	require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{})))
	require.NoError(t, only(s.admin.Resume(ctx, topic, admin.ResumeOptions{})))
	require.NoError(t, only(s.admin.Ready(ctx, topic)))
	require.NoError(t, client.HSet(ctx, s.keys.Names(), "half", dead[0].ID).Err())
	require.NoError(t, root.Expire(ctx, s.keys.Messages(), time.Hour).Err())
	repaired, err := s.admin.Repair(ctx, topic)
	require.NoError(t, err)
	require.Len(t, repaired.Mended, 2)
	report, err := s.admin.Check(ctx, topic)
	require.NoError(t, err)
	require.Empty(t, report.Violations())
	require.Len(t, report.Findings, 1, "the server tells what it is asked: %v", report.Findings)
	_, _, err = s.admin.Topics(ctx, "", 10)
	require.NoError(t, err)
	require.NoError(t, only(s.admin.DeleteIdleGroups(ctx, "other", admin.IdleOptions{Idle: time.Minute})))
	require.NoError(t, only(s.admin.DeleteTopic(ctx, "other", admin.DeleteOptions{})))
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, WaitReplicas: 1, WaitTimeout: time.Millisecond}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, p.Publish(topic, delayed("z", time.Hour)), "0 of 1 replicas")
	require.NoError(t, p.Close())
	queuetest.Check(t, root, s.Prefix)
}

// An error of the lookup must not be reported as not found.
func TestGetByADelayIDThatCannotBeLookedUp(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, server redistest.Server) {
		s := setupOn(t, server)
		s.register(t, "a")
		require.ErrorIs(t, only(s.admin.Get(ctx, topic, admin.ByDelayID("x"))), admin.ErrNotFound)
		require.NoError(t, s.Client.Set(ctx, s.keys.Names(), "x", 0).Err())
		err := only(s.admin.Get(ctx, topic, admin.ByDelayID("x")))
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NotErrorIs(t, err, admin.ErrNotFound)
	})
}

func TestStatsCountMessagesReplacedOrLeftOut(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		named := func(name string, mode redisdelay.DelayIDMode) *message.Message {
			msg := delayed("x", time.Hour)
			redisdelay.SetDelayID(msg, name, mode)
			return msg
		}
		p := s.publisher(t)
		require.NoError(t, p.Publish(topic, text("x"), named("a", redisdelay.DelayIDReplace)))
		require.Equal(t, admin.Counters{Published: 2}, s.stats(t).Counters)
		require.NoError(t, p.Publish(topic, named("a", redisdelay.DelayIDReplace), named("a", redisdelay.DelayIDReplace)))
		require.NoError(t, p.Publish(topic, named("a", redisdelay.DelayIDKeep)))
		require.ErrorIs(t, p.Publish(topic, named("a", redisdelay.DelayIDReject)), redisdelay.ErrExists)
		stats := s.stats(t)
		require.Equal(t, admin.Counters{Published: 4, Replaced: 2, LeftOut: 1}, stats.Counters,
			"one of an earlier call and one of the same call are replaced")
		require.Equal(t, 2, stats.Messages)

		require.NoError(t, s.Client.Del(ctx, s.keys.Counters()).Err())
		require.NoError(t, s.Client.Set(ctx, s.keys.Counters(), "x", 0).Err())
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Len(t, report.Violations(), 1)
		require.NoError(t, s.Client.Del(ctx, s.keys.Counters()).Err())
		require.NoError(t, p.Publish(topic, named("a", redisdelay.DelayIDReplace)))
		require.NoError(t, only(s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})))
		require.Zero(t, s.Client.Exists(ctx, s.keys.Counters()).Val())
	})
}
