package admin_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// Every operation but DeleteGroup takes "" as the default group, and its errors name that group.
func TestGroupWithoutANameIsTheDefaultOne(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "other")
		operations := map[string]func(topic string) error{
			"Requeue":    func(topic string) error { return s.admin.Requeue(ctx, topic, admin.GroupMessage{ID: "id"}) },
			"DeleteDead": func(topic string) error { return s.admin.DeleteDead(ctx, topic, admin.GroupMessage{ID: "id"}) },
			"RequeueAll": func(topic string) error { return only(s.admin.RequeueAll(ctx, topic, admin.Bulk{})) },
			"PurgeDead":  func(topic string) error { return only(s.admin.PurgeDead(ctx, topic, admin.Bulk{})) },
			"MoveDead":   func(topic string) error { return only(s.admin.MoveDead(ctx, topic, admin.Bulk{To: "to"})) },
			"Pause": func(topic string) error {
				return only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("")}))
			},
			"Resume": func(topic string) error {
				return only(s.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("")}))
			},
			"SetLimit": func(topic string) error { return only(s.admin.SetLimit(ctx, topic, "", admin.Limit{AtOnce: 1})) },
			"SetHistory": func(topic string) error {
				return only(s.admin.SetHistory(ctx, topic, "", admin.History{Retention: time.Hour}))
			},
			"ResetHistory": func(topic string) error { return only(s.admin.ResetHistory(ctx, topic, "")) },
			"ResetLimit":   func(topic string) error { return only(s.admin.ResetLimit(ctx, topic, "")) },
			"Kill": func(topic string) error {
				return only(s.admin.Kill(ctx, topic, admin.GroupMessage{ID: "id"}, admin.KillOptions{}))
			},
		}
		for name, do := range operations {
			err := do(topic)
			require.ErrorIs(t, err, admin.ErrNotFound, name)
			require.ErrorContains(t, err, `"default"`, name)
			require.NotContains(t, err.Error(), `""`, name)
			require.ErrorIs(t, do(""), admin.ErrInvalidTopic, name)
			require.NotContains(t, do("").Error(), `group ""`, name)
		}
		_, err := s.admin.List(ctx, topic, admin.Query{State: "asleep"})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, `"default"`)

		s.register(t, "")
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		require.Len(t, s.list(t, "", admin.Ready), 1)
		require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("")})))
		was, err := s.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("")})
		require.NoError(t, err)
		require.True(t, was)
		for _, dry := range []bool{true, false} {
			_, err = s.admin.DeleteGroup(ctx, topic, "", admin.DeleteOptions{DryRun: dry})
			require.ErrorIs(t, err, admin.ErrInvalidArgument)
			require.ErrorContains(t, err, `no group is named; the default one is "default"`)
		}
		require.Len(t, s.list(t, "", admin.Ready), 1)
		removal, err := s.admin.DeleteGroup(ctx, topic, "default", admin.DeleteOptions{})
		require.NoError(t, err)
		require.Equal(t, admin.Removal{Groups: []string{"default"}, Messages: 1}, removal)
	})
}

func TestIdleGroupsAreLeftAloneForAMinuteAtLeast(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		for _, idle := range []time.Duration{-1, 0, time.Minute - 1} {
			require.ErrorIs(t, only(s.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: idle, DryRun: true})), admin.ErrInvalidArgument)
		}
		removal, err := s.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Minute})
		require.NoError(t, err)
		require.Empty(t, removal.Groups)
	})
}

// A delay ID that has ended is not counted, even if its key was not deleted yet.
func TestTakenDelayIDsAreCounted(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	now := time.Now().Truncate(time.Millisecond)
	mini.SetTime(now)
	p := s.publisher(t)
	for i, d := range []time.Duration{time.Minute, time.Hour} {
		msg := delayed("x", d)
		redisdelay.SetDelayID(msg, fmt.Sprint(i), redisdelay.DelayIDReject)
		require.NoError(t, p.Publish(topic, msg))
	}
	require.Equal(t, 2, s.stats(t).DelayIDs)
	mini.SetTime(now.Add(time.Minute - time.Millisecond))
	require.Equal(t, 2, s.stats(t).DelayIDs)
	mini.SetTime(now.Add(time.Minute))
	require.Equal(t, 1, s.stats(t).DelayIDs, "one is free")
}

// The group's subscribers differ in GroupExpiry, as during a deployment.
func TestGroupExpiresOnlyIfNoSubscriberKeepsIt(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	mortal := func(c *redisdelay.SubscriberConfig) { c.GroupExpiry = 10 * time.Minute }
	has := func() bool { return len(s.stats(t).Groups) == 1 }
	timeIsUp := func() { // for groups it passes in real time; and it was put off once
		end := server.Now().UnixMilli() - 1
		require.NoError(t, s.Client.HSet(ctx, s.keys.Stats("a"), "ending", fmt.Sprint(end, " 1"), "asked", end-600_000).Err())
		require.NoError(t, s.Client.ZAddXX(ctx, s.keys.Idle(), redis.Z{Score: float64(end), Member: "a"}).Err())
		server.Advance(0)
	}

	lasting := s.subscriber(t, "a")
	require.NoError(t, only(lasting.Subscribe(ctx, topic)))
	ending := s.subscriber(t, "a", mortal)
	require.NoError(t, only(ending.Subscribe(ctx, topic)))
	eventually(t, func() bool { return s.group(t, "a").Subscribed }, "they wait")
	require.False(t, s.group(t, "a").RemovedAt.IsZero())
	require.NoError(t, ending.Close())
	timeIsUp()
	require.True(t, has(), "somebody waits who does not know of its end")
	require.True(t, s.group(t, "a").RemovedAt.IsZero(), "and it has none any more")
	require.NoError(t, lasting.Close())
	timeIsUp()
	require.True(t, has())

	ending = s.subscriber(t, "a", mortal)
	require.NoError(t, only(ending.Subscribe(ctx, topic)))
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", 24*time.Hour)))
	require.False(t, s.group(t, "a").RemovedAt.IsZero())
	require.NoError(t, ending.Close())
	require.True(t, has())
	timeIsUp()
	require.False(t, has(), "all who subscribed let it end")
	require.Equal(t, 1, s.stats(t).Messages, "what is waiting waits for another group")
}

// cut returns an Admin whose calls fail after a number of scripts, as in a process that is killed,
// and a context for them.
func (s *setup) cut(t *testing.T, scripts int) (context.Context, *admin.Admin) {
	t.Helper()
	ctx, end := context.WithCancel(ctx)
	t.Cleanup(end)
	left := scripts
	return ctx, s.afterEachScript(t, func() {
		if left--; left == 0 {
			end()
		}
	})
}

// afterEachScript returns an Admin that has something done after each of its scripts.
func (s *setup) afterEachScript(t *testing.T, do func()) *admin.Admin {
	t.Helper()
	client := redis.NewClient(s.Client.(*redis.Client).Options())
	t.Cleanup(func() { _ = client.Close() })
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	client.AddHook(redistest.AfterEach(func(call redis.Cmder) {
		if call.Name() == "evalsha" {
			do()
		}
	}))
	return a
}

// After an interrupted DeleteGroup, any later operation removes the rest, and delivers none of it.
func TestInterruptedDeleteGroupIsCompleted(t *testing.T) {
	const n = 2500
	for name, then := range map[string]func(t *testing.T, s *setup){
		"by a scheduler": func(t *testing.T, s *setup) {
			s.subscribe(t, "b")
		},
		"by Check": func(t *testing.T, s *setup) {
			report, err := s.admin.Check(ctx, topic)
			require.NoError(t, err)
			require.Empty(t, report.Violations())
		},
		"by Subscribe": func(t *testing.T, s *setup) {
			messages := s.subscribe(t, "a")
			require.Zero(t, s.group(t, "a").Ready+s.group(t, "a").InHand, "it comes back empty")
			require.NoError(t, s.publisher(t).Publish(topic, text("new")))
			msg := receive(t, messages)
			require.Equal(t, "new", string(msg.Payload))
			require.True(t, msg.Ack())
		},
		"by DeleteTopic": func(t *testing.T, s *setup) {
			require.NoError(t, only(s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})))
			require.Zero(t, s.Client.Exists(ctx, s.keys.Ready("a"), s.keys.Stats("a"), s.keys.Idle()).Val())
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.register(t, "a", "b")
				s.publishMany(t, n)
				ending, a := s.cut(t, 5) // permissions, groups, counts, permissions, the first thousand messages
				_, err := a.DeleteGroup(ending, topic, "a", admin.DeleteOptions{})
				require.ErrorIs(t, err, context.Canceled)
				require.EqualValues(t, n-1000, s.Client.LLen(ctx, s.keys.Ready("a")).Val())
				require.ErrorIs(t, only(s.admin.DeleteGroup(ctx, topic, "a", admin.DeleteOptions{DryRun: true})), admin.ErrNotFound, "it is out of the set")
				then(t, s)
				if name != "by Subscribe" {
					eventually(t, func() bool {
						return s.Client.Exists(ctx, s.keys.Ready("a"), s.keys.Stats("a"), s.keys.Idle()).Val() == 0
					}, "the rest goes")
				}
			})
		})
	}
}

func (s *setup) publishMany(t testing.TB, n int) {
	t.Helper()
	p := s.publisher(t)
	for done := 0; done < n; {
		messages := messagesOf(min(n-done, 1000))
		require.NoError(t, p.Publish(topic, messages...))
		done += len(messages)
	}
}
