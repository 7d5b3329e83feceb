package periodic

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
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

// newYearProgram returns a program. change changes its schedules, unless it is nil.
func newYearProgram(client redis.UniversalClient, n int, change func(*Schedule)) (*Periodic, *redisdelay.Publisher, error) {
	pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	if err != nil {
		return nil, nil, err
	}
	p, err := New(Config{Publisher: pub, Ahead: yearAhead, Poll: 100 * time.Millisecond}, nil)
	all := yearSchedules(n)
	for i := range all {
		if change != nil {
			change(&all[i])
		}
	}
	return p, pub, errors.Join(err, p.Add(all...))
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
	y.topic = queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, "t")
	y.group = y.topic.Group("g")
	require.NoError(t, y.topic.Register(context.Background(), "g", queue.GroupOptions{MaxDeliveries: -1}))

	// All schedules begin at one time, before any other program looks. Their first occurrences are
	// there at once, because they may be due before a slow Message returns.
	p, pub, err := newYearProgram(client, n, nil)
	require.NoError(t, err)
	look := func() {
		_, err = p.topics["t"].look(context.Background())
		require.NoError(t, err)
		p.making.Wait()
	}
	look()
	for i, r := range y.records() {
		y.begun = r.Cursor
		y.expected = append(y.expected, patterns(n)[i].calendar(t, r.Cursor, r.Cursor.Add(lasts)))
	}
	for !y.filled() {
		look()
	}
	require.NoError(t, pub.Close())
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
		call := y.topic.PromoteCall(groups, "test|1", time.Hour, true)
		require.NoError(y.t, queue.Do(ctx, servers.MustClient(y.client), call))
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
		require.NoError(y.t, queue.Do(ctx, servers.MustClient(y.client), call))
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
			require.NoError(y.t, queue.Do(ctx, servers.MustClient(y.client), y.group.AckCalls(held)...))
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
		p, pub, err := newYearProgram(c, schedules, nil)
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

// work is the main function of a program that runs until it is killed. Its own clock is the
// server's, and each Message takes up to a fifth of the interval by that clock, and a step of the
// test longer.
func work(addr string) {
	n, err := strconv.Atoi(os.Getenv("PERIODIC_WORKER_SCHEDULES"))
	c := &sleeping{client: redis.NewClient(&redis.Options{Addr: addr})}
	p, _, err2 := newYearProgram(c.client, n, func(s *Schedule) { s.Message = c.message(*s) })
	if err := errors.Join(err, err2); err != nil {
		panic(err)
	}
	p.now = c.now
	c.follow()
	go func() {
		for range time.Tick(time.Millisecond) {
			c.follow()
		}
	}()
	_ = p.Run(context.Background())
}

// sleepers is the key of the calls of Message that are under way, with their ends in milliseconds.
const sleepers = "sleepers"

// sleeping is how a program sleeps by the server's clock.
type sleeping struct {
	client redis.UniversalClient
	ahead  atomic.Int64 // by how much the server's clock is ahead of this machine's
}

func (c *sleeping) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// follow reads the server's clock.
func (c *sleeping) follow() {
	if now, err := c.client.Time(context.Background()).Result(); err == nil { // else the server was killed
		c.ahead.Store(int64(time.Until(now)))
	}
}

// message returns the Message of a schedule. Half of the occurrences take no time, and the others
// up to a fifth of the time until the next.
func (c *sleeping) message(s Schedule) func(Occurrence) (*message.Message, error) {
	return func(o Occurrence) (*message.Message, error) {
		next, _, err := s.Next(o.At)
		if err != nil {
			return nil, err
		}
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(o.ID()))
		part := float64(hash.Sum32()) / math.MaxUint32
		cost := time.Duration(max(0, part*2-1) / 5 * float64(next.Sub(o.At)))
		if cost < time.Second {
			return hello(o)
		}
		end, member := c.now().Add(cost), fmt.Sprintf("%d|%s|%s", os.Getpid(), s.Name, watermill.NewULID())
		if err := c.client.ZAdd(context.Background(), sleepers, redis.Z{Score: float64(end.UnixMilli()), Member: member}).Err(); err != nil {
			return nil, err
		}
		for c.now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		_ = c.client.ZRem(context.Background(), sleepers, member).Err() // it is over anyway
		return hello(o)
	}
}

// await waits until each schedule has enough occurrences, or a Message under way. It tells whether
// all have enough, and otherwise when the next Message ends.
func (y *year) await() (filled bool, next time.Time) {
	y.t.Helper()
	require.Eventually(y.t, func() bool {
		now := y.now()
		calls, err := y.client.ZRangeByScoreWithScores(context.Background(), sleepers,
			&redis.ZRangeBy{Min: fmt.Sprintf("(%d", now.UnixMilli()), Max: "+inf"}).Result()
		require.NoError(y.t, err)
		asleep := map[string]bool{}
		for _, call := range calls {
			asleep[strings.Split(call.Member.(string), "|")[1]] = true
		}
		filled = true
		for i, r := range y.records() {
			if enough := len(r.Waiting) > 0 && r.Cursor.After(now.Add(yearAhead/2)); !enough {
				filled = false
				if !asleep[fmt.Sprint("schedule ", i)] {
					return false
				}
			}
		}
		if !filled {
			next = time.UnixMilli(int64(calls[0].Score))
		}
		return true
	}, 2*time.Minute, time.Millisecond)
	return filled, next
}

// ended forgets the calls of a program that was killed.
func (y *year) ended(pid int) {
	y.t.Helper()
	all, err := y.client.ZRange(context.Background(), sleepers, 0, -1).Result()
	require.NoError(y.t, err)
	for _, member := range all {
		if strings.HasPrefix(member, fmt.Sprintf("%d|", pid)) {
			require.NoError(y.t, y.client.ZRem(context.Background(), sleepers, member).Err())
		}
	}
}

// Programs are killed, and so is the server, and Message takes its time. PERIODIC_DAYS and
// PERIODIC_SCHEDULES give the long form, which is make periodic.
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
	kills, restarts, slept := 0, 0, 0
	for offset := time.Duration(0); offset < lasts; {
		filled, next := y.await()
		if filled {
			offset += time.Hour + rand.N(yearAhead/2-time.Hour)
		} else {
			// An hour leaves time to fill up the others. Ten minutes end several calls.
			offset += min(max(next.Sub(y.now()), 10*time.Minute), time.Hour)
			slept++
		}
		in.SetClock(offset)
		if !filled && rand.N(30) > 0 {
			continue
		}
		if rand.N(2) == 0 {
			i := rand.N(programs)
			time.Sleep(rand.N(100 * time.Millisecond)) // so that the kill hits any moment of a look
			kill(workers[i])
			y.ended(workers[i].Process.Pid)
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
	}
	missed := int64(0)
	for _, r := range y.records() {
		missed += r.Missed
	}
	require.Zero(t, missed)
	t.Logf("%d occurrences of %d schedules in %v; %d programs were killed, %d times the server; %d steps while Message was called",
		y.total, schedules, lasts, kills, restarts, slept)
}
