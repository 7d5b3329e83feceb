package periodic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

const day = 24 * time.Hour

func TestAnOccurrenceIsInRedisBeforeItIsDue(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	p.look()
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())
	require.Empty(t, w.advance(9*time.Hour-time.Millisecond))
	p.look()
	require.Equal(t, []string{"a 01-01 09:00:00", "a 01-02 09:00:00"}, w.waiting())

	// No program lives.
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.advance(time.Millisecond))
	require.Equal(t, []string{"a 01-02 09:00:00"}, w.advance(day))
	require.Empty(t, w.advance(day))
	w.program(daily("a")).look()
	require.Equal(t, []string{"a 01-03 09:00:00"}, w.advance(0), "the last that was missed")
	require.Equal(t, []string{"a 01-04 09:00:00"}, w.advance(day))
}

func TestManyOccurrencesAheadOfAFrequentSchedule(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a", spec("*/10 * * * * *")))
	p.look()
	require.Len(t, w.waiting(), 30)
	require.Len(t, w.advance(2*time.Minute), 12)
	p.look()
	require.Len(t, w.waiting(), 18, "more than half of Ahead is there")
	require.Len(t, w.advance(time.Minute), 6)
	p.look()
	require.Len(t, w.waiting(), 30)
}

// A schedule that has much to publish in Ahead has a thousand occurrences in Redis at most, and
// half of them at least.
func TestAThousandOccurrencesOfAScheduleWaitAtMost(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a", spec("@every 1s")))
	s := p.topics["t"].all()[0]
	s.ahead = 24 * time.Hour
	p.now = w.Now // else a busy machine makes fewer in one look
	p.look()
	waits := func() (n int) {
		for _, at := range w.record("a").Waiting {
			if at.After(w.Now()) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1000, waits())
	p.look() // it publishes nothing, and learns until when
	var found []string
	for _, seconds := range []int{499, 1, 1, 1} {
		found = append(found, w.advance(time.Duration(seconds)*time.Second)...)
		p.look()
	}
	require.Equal(t, 998, waits(), "it was filled up when half were due")
	require.Len(t, found, 502)
	require.Zero(t, w.record("a").Missed)
}

// A Publisher may refuse calls that are too large, and a topic that is full.
func TestOccurrencesArePublishedAsFarAsThePublisherTakesThem(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*redisdelay.PublisherConfig)
		waits  int
	}{
		"few messages in a call": {func(c *redisdelay.PublisherConfig) { c.MaxPublishMessages = 2 }, 5},
		"room for few":           {func(c *redisdelay.PublisherConfig) { c.MaxWaiting = 3 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			config := redisdelay.PublisherConfig{Client: w.Client()}
			test.change(&config)
			pub, err := redisdelay.NewPublisher(config, nil)
			require.NoError(t, err)
			defer pub.Close()
			p := w.program(daily("a", spec("@every 1m")))
			p.config.Publisher, p.plain, p.publisher = pub, pub, inside.Of(pub)
			p.look()
			require.Len(t, w.waiting(), test.waits)
			require.Equal(t, "a 01-01 00:01:00", w.waiting()[0])
		})
	}
}

func TestMessagesSayWhichOccurrenceTheyAreFor(t *testing.T) {
	w := newWorld(t)
	berlin := zone(t, "Europe/Berlin")
	var made []Occurrence
	p := w.program(daily("a", func(s *Schedule) {
		s.Location = berlin
		s.Message = func(o Occurrence) (*message.Message, error) {
			made = append(made, o)
			msg := message.NewMessage("", []byte("x"))
			msg.Metadata.Set("own", "y")
			return msg, nil
		}
	}))
	for range 3 {
		p.look()
		w.Advance(day)
	}
	w.AwaitDrainedOfDue("t")
	require.Equal(t, Occurrence{Schedule: "a", Topic: "t", At: time.Date(2026, 1, 1, 9, 0, 0, 0, berlin)}, made[0])
	require.Equal(t, made[1].At, made[2].Previous)
	first, second := <-w.delivered, <-w.delivered
	require.NotEmpty(t, first.UUID)
	require.Equal(t, message.Metadata{"own": "y", ScheduleKey: "a", OccurrenceKey: "2026-01-01T08:00:00Z"}, first.Metadata)
	require.Equal(t, "2026-01-01T08:00:00Z", second.Metadata[PreviousKey])
	o, ok := FromMessage(second)
	require.True(t, ok)
	require.Equal(t, Occurrence{Schedule: "a", Topic: "t", At: made[1].At.UTC(), Previous: made[0].At.UTC()}, o)
	d, _ := redisdelay.DeliveryFromContext(second.Context())
	require.Equal(t, o.ID(), d.DelayID)
	_, ok = FromMessage(message.NewMessage("", nil))
	require.False(t, ok)
}

func TestOneOccurrenceCanBeCancelled(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a", spec("0 * * * * *")))
	p.look()
	third := Occurrence{Schedule: "a", At: begin.Add(3 * time.Minute)}
	require.NoError(t, w.Admin().Cancel(context.Background(), "t", admin.ByDelayID(third.ID())))
	p.look()
	w.pause("a")
	w.resume("a")
	p.look()
	require.Equal(t, []string{"a 01-01 00:01:00", "a 01-01 00:02:00", "a 01-01 00:04:00"}, w.advance(4*time.Minute))
}

func TestManyProgramsPublishEachOccurrenceOnce(t *testing.T) {
	w := newWorld(t)
	var programs []*program
	for range 5 {
		programs = append(programs, w.program(daily("a", spec("*/5 * * * * *")), daily("b", spec("0 * * * * *"))))
	}
	for range 4 {
		ended := make(chan struct{})
		for _, p := range programs {
			go func() { p.look(); ended <- struct{}{} }()
		}
		for range programs {
			<-ended
		}
		require.Len(t, w.advance(4*time.Minute), 4*12+4)
	}
}

// A program that stood still with its plan comes too late for each occurrence of it, those too that
// were delivered meanwhile, whose delay IDs are free again.
func TestAProgramThatStoodStillPublishesNothingTwice(t *testing.T) {
	w := newWorld(t)
	called, goOn := make(chan struct{}, 10), make(chan struct{})
	slow := w.program(daily("a", spec("0 * * * * *"), func(s *Schedule) {
		s.Message = func(o Occurrence) (*message.Message, error) { called <- struct{}{}; <-goOn; return hello(o) }
	}))
	other := w.program(daily("a", spec("0 * * * * *")))
	for range 2 { // it begins the schedule, and makes its plan
		_, err := slow.topics["t"].look(context.Background())
		require.NoError(t, err)
	}
	<-called
	other.look()
	require.Equal(t, []string{"a 01-01 00:01:00", "a 01-01 00:02:00"}, w.advance(2*time.Minute))
	waiting := w.waiting()
	close(goOn)
	slow.making.Wait()
	require.Equal(t, waiting, w.waiting())
	require.Empty(t, w.advance(0))
}

func TestMissedOccurrences(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Schedule)
		want   []string
		missed int64
	}{
		"last":                 {func(s *Schedule) {}, []string{"a 01-11 09:00:00"}, 10},
		"last, but not so old": {func(s *Schedule) { s.MisfireWithin = time.Hour }, nil, 10},
		"skip":                 {func(s *Schedule) { s.Misfire = MisfireSkip }, nil, 10},
		"all, not so old": {func(s *Schedule) { s.Misfire = MisfireAll; s.MisfireWithin = 60 * time.Hour },
			[]string{"a 01-09 09:00:00", "a 01-10 09:00:00", "a 01-11 09:00:00"}, 10},
		"all of a day": {func(s *Schedule) { s.Misfire = MisfireAll }, []string{"a 01-11 09:00:00"}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.program(daily("a", test.change))
			p.look()
			require.Equal(t, []string{"a 01-01 09:00:00"}, w.advance(10*day+12*time.Hour))
			p.look()
			require.Equal(t, test.want, w.advance(0))
			require.Equal(t, test.missed, w.record("a").Missed)
			require.Equal(t, []string{"a 01-12 09:00:00"}, w.advance(day))
		})
	}
}

// Each plan is bounded, and so is the time that counting takes.
func TestALongOutageOfAFrequentSchedule(t *testing.T) {
	t.Parallel()
	for misfire, want := range map[Misfire]int{MisfireLast: 1, MisfireAll: 1200, MisfireSkip: 0} {
		t.Run(string(misfire), func(t *testing.T) {
			w := newWorld(t)
			p := w.program(daily("a", spec("* * * * * *"), func(s *Schedule) {
				s.Misfire = misfire
				if misfire == MisfireAll {
					s.MisfireWithin = 20 * time.Minute
				}
			}))
			p.look()
			require.Len(t, w.advance(365*day), 300)
			p.look()
			require.Len(t, w.advance(0), want)
			require.Positive(t, w.record("a").Missed)
			require.Len(t, w.advance(time.Minute), 60)
		})
	}
}

func TestAPausedScheduleRunsNothing(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"), daily("b"))
	p.look()
	w.pause("a")
	require.Equal(t, []string{"b 01-01 09:00:00"}, w.waiting())
	p.look()
	require.Equal(t, []string{"b 01-01 09:00:00"}, w.advance(day))
	p.look()
	w.resume("a")
	p.look()
	require.ElementsMatch(t, []string{"a 01-02 09:00:00", "b 01-02 09:00:00"}, w.advance(day), "what a pause leaves out was not missed")
	require.Zero(t, w.record("a").Missed)
}

func TestRunNow(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	other := w.program(daily("a"))
	p.look()
	w.pause("a")
	w.Advance(day)
	w.run("a")
	w.run("a")
	other.look()
	p.look()
	require.Equal(t, []string{"a 01-02 00:00:00"}, w.advance(0), "once, even while it is paused")
	w.resume("a")
	p.look()
	require.Equal(t, []string{"a 01-02 09:00:00"}, w.advance(day))
}

func TestAnotherSpecTakesBackOccurrencesOfTheOld(t *testing.T) {
	w := newWorld(t)
	old := w.program(daily("a"))
	old.look()
	w.Advance(8 * time.Hour)
	deployed := w.program(daily("a", spec("30 8 * * *")))
	deployed.look()
	require.Equal(t, []string{"a 01-01 08:30:00"}, w.waiting())
	require.Equal(t, 1, w.log.count("Replaced the definition of a schedule"))
	old.look()
	old.look()
	require.Equal(t, 1, w.log.count("Another program that began later"))
	deployed.look() // it answers
	require.Equal(t, []string{"a 01-01 08:30:00"}, w.advance(2*time.Hour))
	old.look()
	deployed.look()
	require.Equal(t, []string{"a 01-02 08:30:00"}, w.advance(day))
}

// Instants of the new spec before the edit do not count, and what was missed before does.
func TestAnEditCountsFromNow(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a", spec("0 3 * * *")))
	p.look()
	require.Equal(t, []string{"a 01-01 03:00:00"}, w.advance(4*time.Hour))
	p.look()
	w.program(daily("a", spec("0 4 * * *"))).look()
	w.program(daily("a", spec("0 3 * * *"))).look()
	require.Equal(t, []string{"a 01-02 03:00:00"}, w.advance(day), "neither 03:00 nor 04:00 of the first day")

	require.Empty(t, w.advance(7*day))
	w.program(daily("a", spec("0 5 * * *"))).look()
	require.Equal(t, []string{"a 01-08 05:00:00"}, w.advance(0), "the outage is not forgotten")
}

// A program of an old definition takes over when no program of the later one lives.
func TestTheDefinitionOfAProgramThatIsGoneCountsNoLonger(t *testing.T) {
	w := newWorld(t)
	a, b := w.program(daily("a")), w.program(daily("a", spec("0 10 * * *")))
	a.look()
	b.look()
	for range 3 { // both live
		a.look()
		w.Advance(time.Minute)
		b.look()
	}
	require.EqualValues(t, 2, w.record("a").Version)
	for _, s := range a.topics["t"].all() {
		s.asked = time.Time{} // a minute has passed
	}
	a.look()
	require.False(t, w.record("a").Asked.IsZero())
	w.Advance(29 * time.Second)
	a.look()
	require.EqualValues(t, 2, w.record("a").Version)
	w.Advance(2 * time.Second)
	a.look()
	require.EqualValues(t, 3, w.record("a").Version)
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())
	require.Equal(t, 1, w.log.count("No program with the later definition"))
}

// The server's clock was six hours ahead when the program asked. It does not wait for so long.
func TestAProgramAsksAnewIfTheServersClockWasAhead(t *testing.T) {
	w := newWorld(t)
	a := w.program(daily("a"))
	a.look()
	w.program(daily("a", spec("0 10 * * *"))).look()
	ask := func() time.Time {
		for _, s := range a.topics["t"].all() {
			s.asked = time.Time{} // a minute has passed
		}
		a.look()
		return w.record("a").Asked
	}
	asked, key := ask(), queue.NewKeys(redisdelay.DefaultKeyPrefix, "t").Schedules()
	record := strings.Split(w.Client().HGet(context.Background(), key, "a").Val(), " ")
	record[4] = fmt.Sprint(asked.Add(6 * time.Hour).UnixMilli())
	require.NoError(t, w.Client().HSet(context.Background(), key, "a", strings.Join(record, " ")).Err())
	w.Advance(time.Minute)
	require.Equal(t, asked.Add(time.Minute), ask())
	w.Advance(31 * time.Second)
	a.look()
	require.Equal(t, 1, w.log.count("No program with the later definition"))
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())
}

func TestARemovedScheduleStaysAway(t *testing.T) {
	w := newWorld(t)
	p, other := w.program(daily("a")), w.program(daily("a"))
	p.look()
	other.look()
	require.NoError(t, p.Remove(context.Background(), "t", "a"))
	require.NoError(t, p.Remove(context.Background(), "t", "never"))
	require.Empty(t, w.waiting())
	p.look()
	other.look()
	other.look()
	require.Empty(t, w.waiting())
	require.Equal(t, 1, w.log.count("The schedule was removed"))
	w.program(daily("a")).look()
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting(), "a program that starts begins it anew")
	other.look()
	require.Equal(t, 1, w.log.count("This program runs the schedule again"))
}

func TestSchedulesComeBackAfterALossOfData(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	p.look()
	require.NoError(t, w.Client().FlushAll(context.Background()).Err())
	_, _ = p.topics["t"].look(context.Background())
	p.look()
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())
}

func TestAMessageThatFailsIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	fails := func(how func()) func(*Schedule) {
		calls := 0
		return func(s *Schedule) {
			s.Spec = "0 * * * * *"
			s.Message = func(o Occurrence) (*message.Message, error) {
				if calls++; calls == 3 || calls == 4 {
					how()
					return nil, errors.New("it failed")
				}
				return hello(o)
			}
		}
	}
	p := w.program(daily("error", fails(func() {})), daily("panic", fails(func() { panic("oops") })),
		daily("exit", fails(runtime.Goexit)), daily("sound", spec("0 * * * * *")),
		daily("nil", spec("0 * * * * *"), func(s *Schedule) {
			s.Message = func(Occurrence) (*message.Message, error) { return nil, nil }
		}))
	p.look()
	count := func() map[string]int {
		found := map[string]int{}
		for _, m := range w.Scheduled("t") {
			found[m.Metadata[ScheduleKey]]++
		}
		return found
	}
	require.Equal(t, map[string]int{"error": 2, "panic": 2, "exit": 2, "sound": 5}, count())
	p.look()
	require.Equal(t, map[string]int{"error": 2, "panic": 2, "exit": 2, "sound": 5}, count(), "a pause comes first")
	for _, text := range []string{"it failed", "Message panicked: oops", "Message called runtime.Goexit", "neither a message nor an error"} {
		require.Equal(t, 1, w.log.count(text), text)
	}
	p.retry()
	p.look()
	p.retry()
	p.look()
	require.Equal(t, map[string]int{"error": 5, "panic": 5, "exit": 5, "sound": 5}, count())
	require.Equal(t, 3, w.log.count("Publishing the occurrences of the schedule again"))
}

func TestAMessageThatHangsDelaysItsScheduleOnly(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	p := w.program(daily("sound"), daily("hangs", func(s *Schedule) {
		s.Message = func(o Occurrence) (*message.Message, error) { <-hang; return hello(o) }
	}))
	_, err := p.topics["t"].look(context.Background()) // begins them
	require.NoError(t, err)
	_, err = p.topics["t"].look(context.Background())
	require.NoError(t, err)
	require.Len(t, w.AwaitScheduled(t, "t", 1), 1)
	require.Eventually(t, func() bool { return slices.Equal(p.busy(), []string{`"hangs"`}) }, 30*time.Second, time.Millisecond)
	close(hang)
	p.making.Wait()
	require.Len(t, w.waiting(), 2)
}

func TestJitterDelaysAllOccurrencesOfAScheduleAlike(t *testing.T) {
	w := newWorld(t)
	jitter := func(s *Schedule) { s.Jitter = time.Hour }
	s := daily("a", jitter)
	offset := s.offset()
	require.True(t, offset > 0 && offset < time.Hour, offset)
	other := daily("b", jitter)
	require.NotEqual(t, offset, other.offset())
	p := w.program(s)
	p.look()
	require.Empty(t, w.advance(9*time.Hour+offset-time.Millisecond))
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.advance(time.Millisecond))
	p.look()
	w.pause("a")
	w.Advance(day - time.Minute)
	w.resume("a")
	p.look()
	require.Equal(t, []string{"a 01-02 09:00:00"}, w.advance(time.Minute), "its instant has passed, and it is not due yet")
}

func TestAScheduleWithAStartAndAnEnd(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a", func(s *Schedule) {
		s.Start, s.End = begin.Add(2*day+9*time.Hour), begin.Add(4*day+9*time.Hour)
	}))
	p.look()
	require.Empty(t, w.advance(2*day))
	var found []string
	for range 5 {
		p.look()
		found = append(found, w.advance(day)...)
	}
	require.Equal(t, []string{"a 01-03 09:00:00", "a 01-04 09:00:00"}, found)
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	w.AwaitScheduled(t, "t", 1)
	require.ErrorIs(t, p.Run(ctx), redisdelay.ErrAlreadyRun)
	require.ErrorIs(t, p.Add(daily("b"), daily("a")), redisdelay.ErrExists)
	require.ErrorIs(t, p.Add(daily("b"), daily("b")), ErrExists)
	require.NoError(t, p.Add(daily("b"), daily("c", func(s *Schedule) { s.Topic = "other" })))
	w.AwaitScheduled(t, "t", 2)
	w.AwaitScheduled(t, "other", 1)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, p.Add(daily("late")))
}

func TestRunDoesNotWaitForEver(t *testing.T) {
	w := newWorld(t)
	called, hang := make(chan struct{}), make(chan struct{})
	p := w.program(daily("hangs", func(s *Schedule) {
		s.Message = func(o Occurrence) (*message.Message, error) { close(called); <-hang; return hello(o) }
	}))
	p.config.CloseTimeout = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-called
	cancel()
	require.ErrorContains(t, <-ended, `after 1ms (CloseTimeout) calls were under way for schedules "hangs"`)
	close(hang)
	p.making.Wait()
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	err := Config{Ahead: time.Second, Poll: time.Millisecond, CloseTimeout: -1}.Validate()
	require.ErrorIs(t, err, ErrInvalidConfig)
	for _, want := range []string{"Publisher is required", "Poll is 1ms", "CloseTimeout is -1ns"} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, Config{Ahead: time.Second}.Validate(), "Ahead is 1s; it has to be at least 4 times Poll (5s)")
	_, err = New(Config{}, nil)
	require.ErrorIs(t, err, ErrInvalidConfig)

	err = Schedule{Spec: "0 25 * * *", Misfire: "x", MisfireWithin: -1, Jitter: -1, Start: begin, End: begin}.Validate()
	require.ErrorIs(t, err, ErrInvalidConfig)
	for _, want := range []string{"Name has 0 bytes", "Topic ", "Message is required", `Spec is "0 25 * * *": hour "25"`, `Misfire is "x"; want "last"`,
		"MisfireWithin is -1ns", "Jitter is -1ns", "End is "} {
		require.ErrorContains(t, err, want)
	}
	err = daily("a", func(s *Schedule) { s.Location, s.Topic, s.Spec = time.Local, strings.Repeat("t", 5000), "* 24 * * 8" }).Validate()
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	for _, want := range []string{"Location is time.Local", "Topic has 5000 bytes", `hour "24"`, `day of week "8": "8" is not a number from 0 to 7 (0 and 7 are Sunday)`} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, Schedule{}.Validate().Error(), "Topic topic")
	require.ErrorContains(t, Schedule{}.Validate(), "Topic is required")
}

// Add and the functions that take a Schedule alone say what is wrong in the same form.
func TestFaultsOfManySchedulesAreNamedAtOnce(t *testing.T) {
	w := newWorld(t)
	p := w.program()
	err := p.Add(daily("a", spec("* * *")), daily("b"), daily("c", func(s *Schedule) { s.Message = nil }))
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, `schedule "a" of topic "t": invalid configuration: Spec is "* * *"`)
	require.ErrorContains(t, err, `schedule "c" of topic "t": invalid configuration: Message is required`)
	require.NoError(t, p.Add(daily("b")), "none was added")
	_, _, err = daily("a", spec("x")).Next(begin)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	_, err = daily("a", spec("x")).Upcoming(begin, 1)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	_, err = FromDefinition("a", "x")
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	_, err = FromDefinition("a", `{"spec":"@daily","zone":"Nowhere","jitter":"x","misfire":"last"}`)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, "Nowhere")
	require.ErrorContains(t, err, `"x"`)
	_, err = New(Config{Publisher: (*redisdelay.Publisher)(nil)}, nil)
	require.ErrorContains(t, err, "Publisher is required")
}

// A decorator's Publish gets each message with its guard, and calls of others are refused.
func TestADecoratedPublisher(t *testing.T) {
	w := newWorld(t)
	plain := w.program().plain
	p := w.program(daily("a", spec("0 * * * * *")))
	topics := []string{}
	p.config.Publisher = decorator{plain, func(topic string, messages []*message.Message) []*message.Message {
		topics = append(topics, topic)
		return messages
	}}
	p.look()
	require.Equal(t, []string{"t"}, topics[:1])
	require.Len(t, w.waiting(), 5)

	lost := w.program(daily("b"))
	lost.config.Publisher = decorator{plain, func(_ string, messages []*message.Message) []*message.Message {
		return []*message.Message{messages[0].Copy()} // without its context
	}}
	lost.look()
	require.Len(t, w.waiting(), 5)
	require.Equal(t, 1, w.log.count("delay id is for an occurrence"))

	swallows := w.program(daily("c"))
	swallows.config.Publisher = decorator{plain, func(string, []*message.Message) []*message.Message { return nil }}
	swallows.look()
	require.Equal(t, 1, w.log.count("a decorator has to pass on each message with its context"))

	_, err := New(Config{Publisher: decorator{decorator{plain, nil}, nil}}, nil)
	require.NoError(t, err)

	// Watermill's decorators have no Unwrap. A struct that embeds one has.
	watermills, err := message.MessageTransformPublisherDecorator(func(msg *message.Message) { msg.Metadata.Set("by", "ann") })(plain)
	require.NoError(t, err)
	_, err = New(Config{Publisher: watermills}, nil)
	require.ErrorContains(t, err, "no methods Unwrap")
	transformed := w.program(daily("d"))
	transformed.config.Publisher = unwrapping{watermills, plain}
	require.NoError(t, transformed.config.Validate())
	transformed.look()
	waiting := w.Scheduled("t")
	require.Len(t, waiting, 6)
	require.Equal(t, "ann", waiting[5].Metadata["by"])
	_, err = New(Config{Publisher: decorator{}}, nil)
	require.ErrorContains(t, err, "Publisher is a periodic.decorator, which is no *redisdelay.Publisher, and has no methods Unwrap() message.Publisher that lead to one")
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
}

// decorator passes on what its function returns.
type decorator struct {
	message.Publisher
	passes func(topic string, messages []*message.Message) []*message.Message
}

func (d decorator) Unwrap() message.Publisher { return d.Publisher }

func (d decorator) Publish(topic string, messages ...*message.Message) error {
	return d.Publisher.Publish(topic, d.passes(topic, messages)...)
}

// unwrapping is a decorator without Unwrap, and what it decorates.
type unwrapping struct {
	message.Publisher
	decorated message.Publisher
}

func (u unwrapping) Unwrap() message.Publisher { return u.decorated }

// A program that runs hears of a resume and a request at once.
func TestAResumeWakesAProgram(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	p.config.Poll, p.config.Ahead = time.Hour, 4*time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	w.AwaitScheduled(t, "t", 1)
	for range 3 {
		w.pause("a")
		require.Empty(t, w.waiting())
		w.resume("a")
		w.AwaitScheduled(t, "t", 1)
	}
	w.run("a")
	require.Eventually(t, func() bool { return len(w.delivered) == 1 }, 30*time.Second, time.Millisecond)
	require.Zero(t, w.record("a").Missed)
	cancel()
	require.NoError(t, <-ended)
}

// A Redis user who may not subscribe has a program that hears of a resume after Poll. One line says
// so, for all topics.
func TestAProgramThatNobodyCanWakeSaysSo(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	owner := in.Client(t)
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, owner.Do(ctx, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-subscribe").Err())
	c := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = c.Close() })
	pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c}, nil)
	require.NoError(t, err)
	log := &capture{}
	p, err := New(Config{Publisher: pub, Poll: 100 * time.Millisecond}, log)
	require.NoError(t, err)
	other := daily("b")
	other.Topic = "other"
	require.NoError(t, p.Add(daily("a"), other))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	waits := func(n int64) func() bool {
		return func() bool { return owner.ZCard(context.Background(), "redisdelay:{t}:pending").Val() == n }
	}
	require.Eventually(t, waits(1), 30*time.Second, time.Millisecond)
	a, err := admin.New(admin.Config{Client: owner})
	require.NoError(t, err)
	for range 3 {
		_, _, err = a.PauseSchedule(ctx, "t", "a", admin.PauseOptions{})
		require.NoError(t, err)
		require.NoError(t, a.ResumeSchedule(ctx, "t", "a"))
		require.Eventually(t, waits(1), 30*time.Second, time.Millisecond)
	}
	said := "info: The Redis user may not subscribe to channels, so a resume of a schedule and a request to run it count after Poll"
	require.Eventually(t, func() bool { return log.count(said) > 0 }, 30*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 1, log.count(said))
	require.Equal(t, 1, log.count("&redisdelay:mailbox:*"), "it names the rule")
}

func TestSchedulesRunAsLongAsTheirRouter(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	p.AddHandler(router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	w.AwaitScheduled(t, "t", 1)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.ErrorIs(t, p.Run(context.Background()), ErrAlreadyRun)
}

// A message that Publish refuses keeps none that comes before it.
func TestARefusedOccurrenceKeepsNoneBeforeIt(t *testing.T) {
	w := newWorld(t)
	s := daily("a", spec("@every 1s"))
	s.Message = func(Occurrence) (*message.Message, error) { // it expires before most of those are due that are made now
		msg := message.NewMessage("", nil)
		redisdelay.ExpireAt(msg, w.Now().Add(30*time.Second), redisdelay.ExpiryDrop)
		return msg, nil
	}
	p := w.program(s)
	p.look()
	require.Len(t, w.waiting(), 29)
	require.Equal(t, 1, w.log.count("Cannot publish the next occurrences"))
	require.Len(t, w.advance(20*time.Second), 20)
	p.retry()
	p.look()
	require.Len(t, w.waiting(), 29)
}

// A client without timeouts waits for Redis as long as that stands still. The log says so.
func TestALookWithoutAnAnswerIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &capture{}
		goOn := make(chan struct{})
		// A name would be looked up, and what that keeps must not be of this bubble.
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-goOn
			return nil, errors.New("no server")
		}, MaxRetries: -1, ReadTimeout: -1, DialTimeout: time.Hour, DialerRetries: 1})
		pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c}, nil)
		require.NoError(t, err)
		p, err := New(Config{Publisher: pub}, log)
		require.NoError(t, err)
		require.NoError(t, p.Add(daily("a")))
		ctx, end := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.topics["t"].run(ctx, nil)
		}()
		time.Sleep(6 * time.Second)
		require.Equal(t, 1, log.count("Redis has not answered a look"))
		time.Sleep(time.Minute)
		require.Equal(t, 2, log.count("Redis has not answered a look"))
		end()
		close(goOn)
		<-ended
		_ = pub.Close()
		_ = c.Close()
	})
}

// hanging is a logger whose errors wait until it is closed.
type hanging struct {
	watermill.NopLogger
	goOn chan struct{}
}

func (h hanging) With(watermill.LogFields) watermill.LoggerAdapter { return h }
func (h hanging) Error(string, error, watermill.LogFields)         { <-h.goOn }

func TestALoggerThatHangsHoldsUpNoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c}, nil)
		require.NoError(t, err)
		log := hanging{goOn: make(chan struct{})}
		p, err := New(Config{Publisher: pub}, log)
		require.NoError(t, err)
		require.NoError(t, p.Add(daily("a")))
		answers := p.topics["t"].sayIfSilent()
		time.Sleep(6 * time.Second)
		require.False(t, answers(), "it was logged")
		close(log.goOn)
		require.True(t, p.topics["t"].sayIfSilent()())
		_ = pub.Close()
		_ = c.Close()
	})
}

// A look that comes at once finds that missed occurrences are being made, which is no fault.
func TestALookThatComesAtOnceDoesNotComplain(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	p.look()
	r, s := w.record("a"), p.topics["t"].all()[0]
	own := time.Now()
	p.now = func() time.Time { return own }
	s.begin()
	defer s.end(nil)
	for after, lines := range map[time.Duration]int{0: 0, p.config.Poll/2 - 1: 0, p.config.Poll / 2: 1} {
		log := &capture{}
		s.logger, s.lateFor, s.told = log, time.Time{}, time.Time{}
		p.now = func() time.Time { return own.Add(after) }
		s.complain(r, w.Now().Add(7*day))
		require.Equal(t, lines, log.count("Message or Publish has not returned"), after)
	}
}

// Somebody asks for an occurrence while Message runs. The program looks again at once after it.
func TestALookThatFindsMessageUnderWayIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	block := sync.OnceFunc(func() {
		close(begun)
		<-goOn
	})
	p := w.program(daily("a", func(s *Schedule) {
		make := s.Message
		s.Message = func(o Occurrence) (*message.Message, error) {
			block()
			return make(o)
		}
	}))
	p.config.Poll = time.Hour
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(running) }()
	<-begun
	at, err := w.Admin().RunSchedule(context.Background(), "t", "a")
	require.NoError(t, err)
	s := p.topics["t"].all()[0]
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waited
	}, 20*time.Second, time.Millisecond)
	close(goOn)
	select {
	case msg := <-w.delivered:
		o, _ := FromMessage(msg)
		require.Equal(t, at.UTC(), o.At)
	case <-time.After(20 * time.Second):
		require.Fail(t, "it comes after Poll")
	}
	stop()
	require.NoError(t, <-ended)
}
