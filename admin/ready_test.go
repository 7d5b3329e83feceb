package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func (s *setup) readiness(t *testing.T) admin.TopicReadiness {
	t.Helper()
	readiness, err := s.admin.Ready(ctx, topic)
	require.NoError(t, err)
	require.Len(t, readiness.Topics, 1)
	r := readiness.Topics[0]
	if r.Scheduled || r.Idle {
		require.NoError(t, readiness.Err(soon))
	} else {
		require.ErrorIs(t, readiness.Err(soon), admin.ErrNotReady)
	}
	return r
}

// A topic without waiting messages needs no scheduler. Otherwise one must be connected.
func TestTopicIsScheduledByAConnectedProcess(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t)
		require.NoError(t, p.Publish(topic, delayed("x", time.Hour)))
		require.True(t, s.readiness(t).Idle, "it has no group that it could become ready for")
		s.register(t, "a")
		require.Equal(t, admin.TopicReadiness{Topic: topic}, s.readiness(t), "nobody is there")

		sub := s.subscriber(t, "a")
		messages, err := sub.Subscribe(ctx, topic)
		require.NoError(t, err)
		eventually(t, func() bool { return s.readiness(t).Scheduled }, "the subscriber's scheduler takes the lease")
		require.False(t, s.readiness(t).Idle)
		require.True(t, s.stats(t).Scheduled)
		require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByID(s.list(t, "", admin.Waiting)[0].ID), admin.When{}))
		receive(t, messages).Ack()
		eventually(t, func() bool { return s.readiness(t).Idle }, "nothing is to come")

		require.NoError(t, p.Publish(topic, delayed("x", time.Hour)))
		require.NoError(t, sub.Close())
		require.Equal(t, admin.TopicReadiness{Topic: topic}, s.readiness(t), "it has resigned")
	})
}

// The killed holder is still in Redis, and nothing is overdue yet.
func TestTopicIsNotScheduledByAProcessThatWasKilled(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
		require.NoError(t, s.Client.HSet(ctx, s.keys.Scheduler(), "holder", s.Prefix+":mailbox:KILLED|1").Err())
		require.Equal(t, admin.TopicReadiness{Topic: topic}, s.readiness(t))
		require.True(t, s.stats(t).Scheduled, "as far as Redis can tell")

		// A standby promotes as soon as the holder is late.
		s.subscribe(t, "a")
		eventually(t, func() bool { return s.readiness(t).Scheduled }, "another watches")
		require.Contains(t, s.Client.HGet(ctx, s.keys.Scheduler(), "holder").Val(), "KILLED")
	})
}

// A holder that is more than a second late loses the role, even if it is connected.
func TestTopicIsNotScheduledByALateHolder(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	s.register(t, "a")
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
	frozen := server.Client().Subscribe(ctx, s.Prefix+":mailbox:FROZEN")
	defer frozen.Close()
	_, err := frozen.Receive(ctx)
	require.NoError(t, err)
	for late, scheduled := range map[time.Duration]bool{0: true, time.Second: true, 1001 * time.Millisecond: false} {
		require.NoError(t, s.Client.HSet(ctx, s.keys.Scheduler(), "holder", s.Prefix+":mailbox:FROZEN|1",
			"next", server.Now().Add(-late).UnixMilli()).Err())
		require.Equal(t, scheduled, s.readiness(t).Scheduled, late)
		require.Equal(t, scheduled, s.stats(t).Scheduled, late)
		require.Zero(t, s.readiness(t).Lag, "nothing is due")
	}
}

// After the last lease was settled, the scheduler would look at the time of its end once more.
func TestStoppedTopicWithNothingToComeIsNotBehind(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	s.register(t, "a")
	require.NoError(t, s.Client.HSet(ctx, s.keys.Scheduler(), "next", server.Now().Add(-time.Hour).UnixMilli()).Err())
	require.Equal(t, admin.TopicReadiness{Topic: topic, Idle: true}, s.readiness(t))
	found, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	for _, p := range found.Problems {
		require.NotContains(t, []admin.ProblemKind{admin.Unscheduled, admin.Behind}, p.Kind, p.Text)
	}
}

// Its end is due-time work, too: messages of the group wait for it.
func TestPauseThatShouldHaveEndedIsLag(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	s.register(t, "a")
	require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a"), For: time.Minute})))
	require.Equal(t, admin.TopicReadiness{Topic: topic, Pauses: s.readiness(t).Pauses}, s.readiness(t), "its end is to come")
	late := redis.Z{Score: float64(server.Now().Add(-2 * time.Minute).UnixMilli()), Member: "a"}
	require.NoError(t, s.Client.ZAddXX(ctx, s.keys.Resumes(), late).Err())
	require.Equal(t, 2*time.Minute, s.readiness(t).Lag)
}

// For example after a typing error in the topic name, or before any consumer runs.
func TestDueMessagesWithoutAGroupAreWaiting(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Minute)))
	require.Equal(t, admin.TopicReadiness{Topic: topic, Idle: true}, s.readiness(t))
	server.Advance(3 * time.Minute)
	require.Equal(t, admin.TopicReadiness{Topic: topic, Idle: true, ReadyFor: 2 * time.Minute}, s.readiness(t))
	require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{})))
	require.Zero(t, s.readiness(t).ReadyFor)
}

func TestLagIsTheAgeOfTheOldestDueWork(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	s.register(t, "a")
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Minute)))
	readiness, err := s.admin.Ready(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, admin.TopicReadiness{Topic: topic}, readiness.Topics[0])
	require.ErrorIs(t, readiness.Err(time.Hour), admin.ErrNotReady, "no scheduler serves it")

	server.Advance(2 * time.Minute) // which makes it ready
	server.Advance(time.Minute)
	readiness, err = s.admin.Ready(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, 2*time.Minute, readiness.Topics[0].ReadyFor)
	require.NoError(t, only(s.admin.Ready(ctx)), "Redis answers")
	require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a")})))
	readiness, err = s.admin.Ready(ctx, topic)
	require.NoError(t, err)
	require.Zero(t, readiness.Topics[0].ReadyFor)

	require.NoError(t, s.publisher(t).Publish(topic, delayed("y", time.Minute)))
	require.NoError(t, s.Client.ZAdd(ctx, s.keys.Pending(), redis.Z{Score: float64(server.Now().Add(-time.Hour).UnixMilli()),
		Member: s.list(t, "", admin.Waiting)[0].ID}).Err())
	readiness, err = s.admin.Ready(ctx, topic)
	require.NoError(t, err)
	require.Equal(t, time.Hour, readiness.Topics[0].Lag)
	require.ErrorContains(t, readiness.Err(time.Minute), "1h0m0s behind")
}

// "A scheduler fails" and "nobody schedules" have different remedies.
func TestReadyTellsWhyTheSchedulerFails(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
		require.Zero(t, s.readiness(t).Fault, "nobody schedules")
		require.NoError(t, s.Client.Set(ctx, s.keys.Refs(), "x", 0).Err()) // Stats does not read this key

		s.subscribe(t, "a")
		eventually(t, func() bool { return s.readiness(t).Fault != "" }, "the scheduler tells")
		r, err := s.admin.Ready(ctx, topic)
		require.NoError(t, err)
		require.False(t, r.Topics[0].Scheduled)
		require.WithinDuration(t, s.stats(t).Now, r.Topics[0].FaultAt, soon)
		require.ErrorContains(t, r.Err(soon), s.keys.Refs()+`" is a string, and has to be a hash`)
		require.ErrorIs(t, r.Err(soon), admin.ErrNotReady)

		require.NoError(t, s.Client.Del(ctx, s.keys.Refs()).Err())
		eventually(t, func() bool { return s.readiness(t).Fault == "" }, "it works again")
		eventually(t, func() bool { return s.readiness(t).Scheduled }, "and has the lease")
	})
}

// Promotions succeed here, but the work that they find does not.
func TestReadyTellsWhyALeaseIsNotTakenBack(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		call := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group("a").ClaimCall(
			queue.Claim{Subscription: "S", Number: 1, Limit: 1, Lease: time.Hour, Bytes: 1})
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
		inHand := s.list(t, "a", admin.InHand)[0]
		id := inHand.ID
		require.False(t, inHand.Places[0].InHandSince.IsZero())
		require.Equal(t, inHand.Places[0].InHandSince.Add(time.Hour), inHand.Places[0].At, "the lease began then")
		require.NoError(t, s.Client.HSet(ctx, s.keys.Suspects("a"), id, "2 - -").Err())
		found, err := s.admin.Get(ctx, topic, admin.ByID(id))
		require.NoError(t, err)
		require.NoError(t, s.Client.Del(ctx, s.keys.Suspects("a")).Err())
		want := inHand.Places[0]
		want.Subscription = "S" // only Get says this and the rest
		want.ClaimedDue, want.Expiries = found.Places[0].ClaimedDue, 2
		require.WithinDuration(t, want.InHandSince, want.ClaimedDue, time.Minute)
		require.Equal(t, want, found.Places[0])
		require.NoError(t, s.Client.ZAdd(ctx, s.keys.Unack("a"), redis.Z{Score: 1, Member: id}).Err())
		require.NoError(t, s.Client.HSet(ctx, s.keys.Scheduler(), "next", 1).Err())
		require.NoError(t, s.Client.Set(ctx, s.keys.Deliveries("a"), "x", 0).Err())

		run, stop := context.WithCancel(ctx)
		works, err := scheduler.New(scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix, Topics: []string{topic}}, nil)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- works.Run(run) }()
		defer func() { stop(); <-ended }()
		readiness := func() admin.TopicReadiness {
			r, err := s.admin.Ready(ctx, topic)
			require.NoError(t, err)
			return r.Topics[0]
		}
		eventually(t, func() bool { return readiness().Fault != "" }, "the scheduler tells")
		r := readiness()
		require.Contains(t, r.Fault, s.keys.Deliveries("a"))
		require.ErrorContains(t, admin.Readiness{Topics: []admin.TopicReadiness{r}}.Err(soon), r.Fault)
		require.NoError(t, s.Client.Del(ctx, s.keys.Deliveries("a")).Err())
		eventually(t, func() bool { return readiness().Fault == "" }, "it works again")
	})
}

func TestReadyShowsPauses(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a", "b")
		require.Empty(t, s.readiness(t).Pauses)
		require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("b")})))
		require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{})))
		now := s.stats(t).Now
		pauses := s.readiness(t).Pauses
		require.Len(t, pauses, 2)
		for i, group := range []string{"", "b"} {
			require.Equal(t, group, pauses[i].Group)
			require.WithinDuration(t, now, pauses[i].Since, soon)
		}
		require.Contains(t, pauses[1].String(), `group "b" is paused since `)
		require.NoError(t, only(s.admin.Resume(ctx, topic, admin.ResumeOptions{})))
		require.Equal(t, pauses[1:], s.readiness(t).Pauses)
	})
}
