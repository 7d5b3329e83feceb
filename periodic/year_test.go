package periodic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// The tests of this file run many schedules in many programs for a long time of the server's clock.
// They end programs and servers at random, and compare what is delivered with the calendar.

// yearSchedule is schedule i of a year test.
func yearSchedule(i int, p pattern) Schedule {
	zone, err := time.LoadLocation(p.zone)
	if err != nil {
		panic(err) // the data of time zones is part of the test
	}
	return Schedule{Name: fmt.Sprint("schedule ", i), Topic: "t", Spec: p.spec(), Location: zone, Message: hello, Misfire: MisfireAll,
		MisfireWithin: 100 * day}
}

func yearSchedules(n int) (all []Schedule) {
	for i, p := range patterns(n) {
		all = append(all, yearSchedule(i, p))
	}
	return all
}

// yearAhead is Config.Ahead. A step of the clock is at most half of it, so that nothing is late.
const yearAhead = 24 * time.Hour

func newYearProgram(client redis.UniversalClient, n int) (*Periodic, *redisdelay.Publisher, error) {
	pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	if err != nil {
		return nil, nil, err
	}
	p, err := New(Config{Publisher: pub, Ahead: yearAhead, Poll: 100 * time.Millisecond}, nil)
	return p, pub, errors.Join(err, p.Add(yearSchedules(n)...))
}

// year is a year test under way.
type year struct {
	t        *testing.T
	client   redis.UniversalClient
	topic    *queue.Topic
	group    *queue.Group
	n        int
	begun    time.Time
	expected [][]time.Time // of each schedule
	got      []int         // how many each has had
	total    int
	claims   uint64
}

func newYear(t *testing.T, client redis.UniversalClient, n int, lasts time.Duration) *year {
	t.Helper()
	y := &year{t: t, client: client, n: n, got: make([]int, n)}
	y.topic = queue.NewTopic(queue.MustClient(client), redisdelay.DefaultKeyPrefix, "t")
	y.group = y.topic.Group("g")
	require.NoError(t, y.topic.Register(context.Background(), "g", queue.GroupOptions{MaxDeliveries: -1}))

	// All schedules begin at one time, before any program looks.
	p, pub, err := newYearProgram(client, n)
	require.NoError(t, err)
	_, err = p.topics["t"].look(context.Background())
	require.NoError(t, err)
	p.making.Wait()
	require.NoError(t, pub.Close())
	for i, r := range y.records() {
		y.begun = r.Cursor
		y.expected = append(y.expected, patterns(n)[i].calendar(t, r.Cursor, r.Cursor.Add(lasts)))
	}
	return y
}

func (y *year) records() []queue.Recurring {
	y.t.Helper()
	var names []string
	for _, s := range yearSchedules(y.n) {
		names = append(names, s.Name)
	}
	_, _, records, err := y.topic.Schedules(context.Background(), "", names)
	require.NoError(y.t, err)
	return records
}

// filled tells whether all schedules have enough occurrences in Redis.
func (y *year) filled() bool {
	now := y.now()
	for _, r := range y.records() {
		if len(r.Waiting) == 0 || !r.Cursor.After(now.Add(yearAhead/2)) {
			return false
		}
	}
	return true
}

func (y *year) now() time.Time {
	y.t.Helper()
	now, err := y.client.Time(context.Background()).Result()
	require.NoError(y.t, err)
	return now
}

// check takes what is due, and compares it with the calendar: each occurrence is there, in order,
// once, and not early.
func (y *year) check() {
	y.t.Helper()
	ctx := context.Background()
	groups, err := y.topic.Groups(ctx)
	require.NoError(y.t, err)
	for wait := time.Duration(0); wait == 0; {
		call := y.topic.PromoteCall(groups, "test|1", time.Hour)
		require.NoError(y.t, queue.Do(ctx, queue.MustClient(y.client), call))
		turn, stale, err := y.topic.ReadTurn(call, groups)
		require.NoError(y.t, err)
		require.False(y.t, stale)
		wait = turn.Wait
	}
	now := y.now()
	for more := true; more; {
		y.claims++
		claim := queue.Claim{Subscription: "S", Number: y.claims, Limit: 1000, Most: 1000, Lease: 1000 * day, Patience: time.Hour, Bytes: 4 << 20}
		call := y.group.ClaimCall(claim)
		require.NoError(y.t, queue.Do(ctx, queue.MustClient(y.client), call))
		claimed, err := claim.ReadClaim(call.Cmd())
		require.NoError(y.t, err)
		var held []*queue.Leased
		for i := range claimed.Messages {
			m := &claimed.Messages[i]
			held = append(held, m)
			msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("t", m.Body)
			require.NoError(y.t, err)
			y.took(msg.Metadata[ScheduleKey], instantOf(y.t, msg.Metadata[OccurrenceKey]), now)
		}
		if more = len(held) > 0; more {
			require.NoError(y.t, queue.Do(ctx, queue.MustClient(y.client), y.group.AckCalls(held)...))
		}
	}
	for i, want := range y.expected {
		if next := y.got[i]; next < len(want) {
			require.True(y.t, want[next].After(now.Add(-time.Second)), "schedule %d: %v is missing at %v", i, want[next], now)
		}
	}
}

// took compares one delivered occurrence.
func (y *year) took(name string, at, now time.Time) {
	y.t.Helper()
	var i int
	_, err := fmt.Sscanf(name, "schedule %d", &i)
	require.NoError(y.t, err)
	require.False(y.t, at.After(now), "%s: %v is early, it is %v", name, at, now)
	require.Less(y.t, y.got[i], len(y.expected[i]), name)
	require.Equal(y.t, y.expected[i][y.got[i]].UTC(), at.UTC(), "%s, occurrence %d", name, y.got[i])
	y.got[i]++
	y.total++
}

// Programs in this process end while their calls are under way.
func TestProgramsThatEndAtRandomPublishTheCalendar(t *testing.T) {
	t.Parallel()
	const programs, schedules, lasts = 5, 20, 14 * day
	mini, client := redistest.Embedded(t)
	now := time.Date(2026, 3, 25, 0, 0, 0, 0, time.UTC) // clocks change on the 29th, and on April 5th
	mini.SetTime(now)
	y := newYear(t, client, schedules, lasts)
	look := func(ends bool) {
		c := redis.NewClient(&redis.Options{Addr: mini.Addr(), MaxRetries: 1, ReadTimeout: time.Minute})
		defer c.Close()
		p, pub, err := newYearProgram(c, schedules)
		require.NoError(t, err)
		defer pub.Close()
		if ends {
			time.AfterFunc(rand.N(5*time.Millisecond), func() { _ = c.Close() })
		}
		for again := true; again; {
			if again, err = p.topics["t"].look(context.Background()); err != nil {
				require.True(t, ends, err)
			}
			p.making.Wait()
		}
	}
	for end := now.Add(lasts - day); now.Before(end); {
		done := make(chan struct{})
		for range programs - 1 {
			ends := rand.N(2) == 0
			go func() { look(ends); done <- struct{}{} }()
		}
		for range programs - 1 {
			<-done
		}
		look(false) // one lives
		look(false) // a daily schedule that has none takes two looks until it has enough
		require.True(t, y.filled())
		now = now.Add(rand.N(yearAhead / 2))
		mini.SetTime(now)
		y.check()
	}
	t.Logf("%d occurrences of %d schedules", y.total, schedules)
}

// workerAddr is the variable by which this test binary is a program of a year test.
const workerAddr = "PERIODIC_WORKER_ADDR"

// work is the main function of a program that runs until it is killed.
func work(addr string) {
	n, err := strconv.Atoi(os.Getenv("PERIODIC_WORKER_SCHEDULES"))
	p, _, err2 := newYearProgram(redis.NewClient(&redis.Options{Addr: addr}), n)
	if err := errors.Join(err, err2); err != nil {
		panic(err)
	}
	_ = p.Run(context.Background())
}

// Programs are killed, and so is the server. PERIODIC_DAYS and PERIODIC_SCHEDULES give the long
// form, which is make periodic.
func TestKilledProgramsAndServersKeepTheCalendar(t *testing.T) {
	t.Parallel()
	number := func(name string, short int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return short
	}
	schedules, lasts := number("PERIODIC_SCHEDULES", 20), time.Duration(number("PERIODIC_DAYS", 4))*day
	const programs = 5
	in := redistest.StartWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
	client := in.Client(t)
	y := newYear(t, client, schedules, lasts+2*day)
	start := func() *exec.Cmd {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), workerAddr+"="+in.Addr(), "PERIODIC_WORKER_SCHEDULES="+strconv.Itoa(schedules))
		require.NoError(t, c.Start())
		return c
	}
	kill := func(c *exec.Cmd) {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	var workers [programs]*exec.Cmd
	for i := range workers {
		workers[i] = start()
	}
	defer func() {
		for _, c := range workers {
			kill(c)
		}
	}()
	require.Eventually(t, y.filled, time.Minute, 10*time.Millisecond)
	kills, restarts := 0, 0
	for offset := time.Duration(0); offset < lasts; {
		offset += time.Hour + rand.N(yearAhead/2-time.Hour)
		in.SetClock(offset)
		if rand.N(2) == 0 {
			i := rand.N(programs)
			time.Sleep(rand.N(100 * time.Millisecond)) // so that the kill hits any moment of a look
			kill(workers[i])
			workers[i] = start()
			kills++
		}
		if rand.N(8) == 0 {
			time.Sleep(rand.N(100 * time.Millisecond))
			in.Kill()
			in.Restart()
			restarts++
		}
		y.check()
		require.Eventually(t, y.filled, time.Minute, 10*time.Millisecond)
	}
	t.Logf("%d occurrences of %d schedules in %v; %d programs were killed, %d times the server", y.total, schedules, lasts, kills, restarts)
}
