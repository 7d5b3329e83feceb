package periodic

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

// begin is when the clock of a world begins: a Thursday.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a server whose clock the test moves, programs, and a consumer of topic "t".
type world struct {
	*redisdelaytest.Server
	t         *testing.T
	delivered chan *message.Message
	log       *capture
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldAt(t, begin)
}

func newWorldAt(t *testing.T, now time.Time) *world {
	t.Helper()
	s := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: now})
	w := &world{Server: s, t: t, delivered: make(chan *message.Message, 100_000), log: &capture{}}
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client(), MaxInFlight: 1000}, nil)
	require.NoError(t, err)
	messages, err := sub.Subscribe(context.Background(), "t")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			w.delivered <- msg
			msg.Ack()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, sub.Close())
		<-done
	})
	return w
}

// program is one process that runs schedules.
type program struct {
	*Periodic
	w *world
	c *redis.Client
}

// program starts a program. A test has it look.
func (w *world) program(schedules ...Schedule) *program {
	w.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: w.Addr(), MaxRetries: 1})
	pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c}, nil)
	require.NoError(w.t, err)
	p, err := New(Config{Publisher: pub}, w.log)
	require.NoError(w.t, err)
	require.NoError(w.t, p.Add(schedules...))
	w.t.Cleanup(func() {
		_ = pub.Close()
		_ = c.Close()
	})
	return &program{p, w, c}
}

// look has the program look until it has nothing more to do.
func (p *program) look() {
	p.w.t.Helper()
	for _, t := range p.topics {
		for again := true; again; {
			var err error
			again, err = t.look(context.Background())
			require.NoError(p.w.t, err)
			p.making.Wait()
			select {
			case <-t.wake:
				again = true
			default:
			}
		}
	}
}

// retry ends the pauses after failures.
func (p *program) retry() {
	for _, t := range p.topics {
		for _, s := range t.all() {
			s.mu.Lock()
			s.retry = time.Time{}
			s.mu.Unlock()
		}
	}
}

// daily is a schedule of topic "t" at 09:00 UTC, unless changed.
func daily(name string, change ...func(*Schedule)) Schedule {
	s := Schedule{Name: name, Topic: "t", Spec: "0 9 * * *", Message: hello}
	for _, f := range change {
		f(&s)
	}
	return s
}

func hello(o Occurrence) (*message.Message, error) {
	return message.NewMessage(watermill.NewUUID(), []byte(o.Schedule)), nil
}

func spec(text string) func(*Schedule) { return func(s *Schedule) { s.Spec = text } }

// clock writes an instant of 2026 as tests do.
func clock(t time.Time) string { return t.UTC().Format("01-02 15:04:05") }

// advance moves the clock, and returns what is delivered, as "schedule instant".
func (w *world) advance(d time.Duration) (found []string) {
	w.t.Helper()
	w.Advance(d)
	for _, o := range w.occurrences() {
		found = append(found, o.Schedule+" "+clock(o.At))
	}
	return found
}

// occurrences returns what was delivered since the last time. None is early.
func (w *world) occurrences() (found []Occurrence) {
	w.t.Helper()
	w.AwaitDrainedOfDue("t")
	now := w.Now()
	for {
		select {
		case msg := <-w.delivered:
			o, ok := FromMessage(msg)
			require.True(w.t, ok)
			require.False(w.t, o.At.After(now), "%v is early, it is %v", o.At, now)
			found = append(found, o)
			continue
		default:
		}
		return found
	}
}

// AwaitDrainedOfDue waits until all due messages of the topic were handled.
func (w *world) AwaitDrainedOfDue(topic string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		stats, err := w.Admin().Stats(context.Background(), topic)
		require.NoError(w.t, err)
		for _, g := range stats.Groups {
			if g.Ready+g.InHand > 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
}

// waiting returns which occurrences wait in Redis, as "schedule instant".
func (w *world) waiting() (found []string) {
	w.t.Helper()
	for _, m := range w.Scheduled("t") {
		found = append(found, m.Metadata[ScheduleKey]+" "+clock(instantOf(w.t, m.Metadata[OccurrenceKey])))
	}
	return found
}

func instantOf(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return at
}

// record returns the record of a schedule.
func (w *world) record(name string) queue.Recurring {
	w.t.Helper()
	_, _, records, err := queue.NewTopic(servers.MustClient(w.Client()), redisdelay.DefaultKeyPrefix, "t").Schedules(context.Background(), "", []string{name})
	require.NoError(w.t, err)
	return records[0]
}

func (w *world) pause(name string) { w.pauseFor(name, 0) }

// pauseFor pauses a schedule for a time, 0 until a resume.
func (w *world) pauseFor(name string, d time.Duration) {
	w.t.Helper()
	_, _, err := w.Admin().PauseSchedule(context.Background(), "t", name, admin.PauseOptions{For: d})
	require.NoError(w.t, err)
}

func (w *world) resume(name string) {
	w.t.Helper()
	require.NoError(w.t, w.Admin().ResumeSchedule(context.Background(), "t", name))
}

func (w *world) run(name string) {
	w.t.Helper()
	at, err := w.Admin().RunSchedule(context.Background(), "t", name)
	require.NoError(w.t, err)
	require.Equal(w.t, w.Now().UnixMilli(), at.UnixMilli())
}

// capture keeps what is logged.
type capture struct {
	watermill.NopLogger
	mu    sync.Mutex
	lines []string
}

func (c *capture) note(level, msg string, err error, fields watermill.LogFields) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprintf("%s: %s %v %v", level, msg, err, fields))
}

func (c *capture) Error(msg string, err error, fields watermill.LogFields) {
	c.note("error", msg, err, fields)
}
func (c *capture) Info(msg string, fields watermill.LogFields) { c.note("info", msg, nil, fields) }
func (c *capture) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return c
}

// count returns how many lines have a text.
func (c *capture) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(c.lines), func(line string) bool { return !strings.Contains(line, text) }))
}
