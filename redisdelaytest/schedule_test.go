package redisdelaytest_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// newYear is when the clock of these tests begins, in Berlin.
func newYear(t testing.TB) time.Time {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	return time.Date(2026, time.January, 1, 0, 0, 0, 0, berlin)
}

// nightly is a schedule at half past two in Berlin, a time that one night leaves out and another
// has twice.
func nightly(t testing.TB) periodic.Schedule {
	return periodic.Schedule{Name: "nightly", Topic: "cleanups", Spec: "30 2 * * *", Location: newYear(t).Location(), Message: some}
}

func some(periodic.Occurrence) (*message.Message, error) { return message.NewMessage("", nil), nil }

// schedules runs schedules until the test ends, in a program of their own.
func schedules(t testing.TB, server *redisdelaytest.Server, config periodic.Config, all ...periodic.Schedule) (stop func()) {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	require.NoError(t, err)
	config.Publisher = publisher
	p, err := periodic.New(config, nil)
	require.NoError(t, err)
	require.NoError(t, p.Add(all...))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = func() {
		if cancel(); ctx != nil {
			ctx = nil
			require.NoError(t, <-ended)
			require.NoError(t, publisher.Close())
		}
	}
	t.Cleanup(stop)
	return stop
}

// consume returns the messages of a topic.
func consume(t testing.TB, server *redisdelaytest.Server, topic string) <-chan *message.Message {
	t.Helper()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: server.Client(), MaxInFlight: 1000}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	messages, err := subscriber.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return messages
}

// occurrence takes the next occurrence, and acks it.
func occurrence(t testing.TB, server *redisdelaytest.Server, messages <-chan *message.Message) time.Time {
	t.Helper()
	msg := server.Receive(t, messages)
	o, ok := periodic.FromMessage(msg)
	require.True(t, ok)
	msg.Ack()
	return o.At
}

// nights returns when nightly runs in a year. On March 29 the clock goes from two to three, and on
// October 25 from three back to two.
func nights(t testing.TB) (at []time.Time) {
	for day := range 365 {
		night := newYear(t).AddDate(0, 0, day)
		due := time.Date(night.Year(), night.Month(), night.Day(), 2, 30, 0, 0, night.Location())
		switch night.Format("01-02") {
		case "03-29":
			due = time.Date(2026, time.March, 29, 1, 0, 0, 0, time.UTC)
		case "10-25":
			due = time.Date(2026, time.October, 25, 0, 30, 0, 0, time.UTC)
		}
		at = append(at, due.UTC())
	}
	return at
}

func TestAYearOfNightsOneByOne(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	messages := consume(t, server, "cleanups")
	schedules(t, server, periodic.Config{}, nightly(t))
	server.AwaitScheduled(t, "cleanups", 1)
	begin := time.Now()
	for _, night := range nights(t) {
		due, ok := server.AdvanceToNext()
		require.True(t, ok)
		require.Equal(t, night, due.UTC())
		require.Equal(t, night, server.Now().UTC())
		require.Equal(t, night, occurrence(t, server, messages))
	}
	t.Logf("a year of nights took %v", time.Since(begin))
	require.Zero(t, schedule(t, server, "cleanups").Missed)
}

func TestAYearOfNightsInOneStep(t *testing.T) {
	t.Parallel()

	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	messages := consume(t, server, "cleanups")
	schedules(t, server, periodic.Config{}, nightly(t))
	server.AwaitScheduled(t, "cleanups", 1)
	begin := time.Now()
	server.Advance(newYear(t).AddDate(1, 0, 0).Sub(newYear(t)))
	t.Logf("a year of nights took %v", time.Since(begin))
	require.Equal(t, time.Date(2027, time.January, 1, 0, 0, 0, 0, newYear(t).Location()).UTC(), server.Now().UTC())
	var delivered []time.Time
	for range nights(t) {
		delivered = append(delivered, occurrence(t, server, messages))
	}
	slices.SortFunc(delivered, time.Time.Compare)
	require.Equal(t, nights(t), delivered)
	require.Zero(t, schedule(t, server, "cleanups").Missed)
	require.Len(t, server.Scheduled("cleanups"), 1)
}

func schedule(t testing.TB, server *redisdelaytest.Server, topic string) admin.Schedule {
	t.Helper()
	all, err := server.Admin().Schedules(context.Background(), topic)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Len(t, all[0].Schedules, 1)
	return all[0].Schedules[0]
}

// The programs of two processes take turns, and one of them ends.
func TestSchedulesMoveWithAnyNumberOfPrograms(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	hourly := periodic.Schedule{Name: "hourly", Topic: "other", Spec: "0 * * * *", Message: some, Misfire: periodic.MisfireSkip}
	stop := schedules(t, server, periodic.Config{Poll: time.Hour, Ahead: 4 * time.Hour}, nightly(t), hourly)
	schedules(t, server, periodic.Config{Poll: 15 * time.Second}, nightly(t), hourly)
	server.AwaitScheduled(t, "cleanups", 1)
	require.Eventually(t, func() bool { return len(server.Scheduled("other")) > 0 }, 10*time.Second, time.Millisecond)
	messages := consume(t, server, "other")
	server.Advance(4 * 24 * time.Hour)
	stop()
	server.Advance(3 * 24 * time.Hour)
	for range 7 * 24 {
		occurrence(t, server, messages)
	}
	require.Zero(t, schedule(t, server, "other").Missed)
	require.Zero(t, schedule(t, server, "cleanups").Missed)
}

func TestAdvanceWaitsForMessage(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	slow := nightly(t)
	slow.Message = func(o periodic.Occurrence) (*message.Message, error) {
		time.Sleep(20 * time.Millisecond)
		return some(o)
	}
	schedules(t, server, periodic.Config{Poll: time.Hour, Ahead: 4 * time.Hour}, slow)
	server.AwaitScheduled(t, "cleanups", 1)
	for n := 2; n < 10; n++ { // nobody subscribes, so those that are due stay scheduled
		server.Advance(24 * time.Hour)
		require.Len(t, server.Scheduled("cleanups"), n)
	}
}

// The pause after a failure passes with the server's clock.
func TestAFailedMessageIsTriedAgainInTheServersTime(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	fails, calls := atomic.Bool{}, atomic.Int64{}
	failing := nightly(t)
	failing.Message = func(o periodic.Occurrence) (*message.Message, error) {
		if calls.Add(1); fails.Load() {
			return nil, errors.New("fails")
		}
		return some(o)
	}
	schedules(t, server, periodic.Config{}, failing)
	server.AwaitScheduled(t, "cleanups", 1)
	fails.Store(true)
	begin := time.Now()
	server.Advance(24 * time.Hour)
	require.Len(t, server.Scheduled("cleanups"), 1)
	require.Greater(t, calls.Load(), int64(10))
	require.Less(t, calls.Load(), int64(20), "it does not stop each minute for ever")
	server.Advance(365 * 24 * time.Hour)
	fails.Store(false)
	server.Advance(2 * time.Minute)
	require.Len(t, server.Scheduled("cleanups"), 3, "the last one that was missed, and the next one")
	require.Less(t, time.Since(begin), 10*time.Second)
}

func TestAdvanceNamesTheTopicOfAMessageThatHangs(t *testing.T) {
	t.Parallel()
	server, err := redisdelaytest.New(redisdelaytest.Config{Now: newYear(t)})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	goOn := make(chan struct{})
	hanging := nightly(t)
	hanging.Message = func(o periodic.Occurrence) (*message.Message, error) {
		if o.At.Day() > 1 {
			<-goOn
		}
		return some(o)
	}
	schedules(t, server, periodic.Config{}, hanging)
	t.Cleanup(func() { close(goOn) })
	server.AwaitScheduled(t, "cleanups", 1)
	server.SetPatience(100 * time.Millisecond)
	defer func() {
		require.ErrorContains(t, recover().(error), `programs have not settled within 100ms: topics "cleanups"`)
	}()
	server.Advance(24 * time.Hour)
}

// An occurrence in hand is handled in real time, so the next night finds it in hand.
func TestTheNextNightOverlapsOneThatIsInHand(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	overlap, err := periodic.Overlap(periodic.OverlapConfig{Client: server.Client(), Lease: 30 * time.Second}, nil)
	require.NoError(t, err)
	messages := consume(t, server, "cleanups")
	schedules(t, server, periodic.Config{}, nightly(t))
	server.AwaitScheduled(t, "cleanups", 1)
	begun, goOn := make(chan time.Time, 9), make(chan struct{})
	handle := overlap(func(msg *message.Message) ([]*message.Message, error) {
		o, _ := periodic.FromMessage(msg)
		begun <- o.At
		<-goOn
		return nil, nil
	})
	handled := make(chan error, 9)
	for night := range 3 {
		server.AdvanceToNext()
		msg := server.Receive(t, messages)
		go func() {
			_, err := handle(msg)
			msg.Ack()
			handled <- err
		}()
		if night == 0 {
			<-begun
			continue
		}
		select {
		case err := <-handled: // it is skipped
			require.NoError(t, err)
		case <-begun:
			close(goOn)
			require.Fail(t, "a second occurrence is handled at the same time")
		}
	}
	close(goOn)
	require.NoError(t, <-handled)
}

// The programs of an old and a new definition both live, so the new one counts all the time.
func TestALaterDefinitionCountsWhileItsProgramLives(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: newYear(t)})
	schedules(t, server, periodic.Config{}, nightly(t))
	server.AwaitScheduled(t, "cleanups", 1)
	later := nightly(t)
	later.Spec = "45 4 * * *"
	stop := schedules(t, server, periodic.Config{}, later)
	begun := func() bool {
		waiting := server.Scheduled("cleanups")
		return len(waiting) == 1 && waiting[0].Places[0].At.Minute() == 45
	}
	require.Eventually(t, begun, 10*time.Second, time.Millisecond)
	version := schedule(t, server, "cleanups").Version
	messages := consume(t, server, "cleanups")
	for range 10 {
		_, ok := server.AdvanceToNext()
		require.True(t, ok)
		require.Equal(t, 45, occurrence(t, server, messages).Minute())
	}
	require.Equal(t, version, schedule(t, server, "cleanups").Version)

	stop()
	server.Advance(24 * time.Hour)
	require.Equal(t, 45, occurrence(t, server, messages).Minute(), "it was waiting")
	server.Advance(time.Minute)
	require.Greater(t, schedule(t, server, "cleanups").Version, version)
	server.AdvanceToNext()
	require.Equal(t, 30, occurrence(t, server, messages).Minute())
}
