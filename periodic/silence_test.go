package periodic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// No schedule that a program runs is silent for longer than its interval and a poll without a line
// in the log. Messages of schedules take from nothing to twice their interval, fail, panic and
// hang. Programs end and begin, Redis fails, its clock jumps, schedules are paused, resumed and
// edited. All of it passes in the time of a bubble, which the server's clock follows.
//
// PERIODIC_SCENARIOS is how many scenarios each of four tests runs.
func TestNoScheduleIsSilent(t *testing.T) {
	t.Parallel()
	most, err := strconv.Atoi(os.Getenv("PERIODIC_SCENARIOS"))
	if err != nil {
		most = 3
	}
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			ran, failed := 0, false
			rapid.Check(t, func(r *rapid.T) {
				s := drawScenario(r)
				if ran++; ran > most && !failed {
					return // rapid draws a hundred
				}
				if fault := s.run(t); fault != "" {
					failed = true
					r.Fatal(fault)
				}
			})
		})
	}
}

// TestASlowMessageIsPublished has the costs that once kept schedules silent for ever.
func TestASlowMessageIsPublished(t *testing.T) {
	t.Parallel()
	for spec, cost := range map[string]time.Duration{"@every 1s": 12 * time.Millisecond, "@every 5s": 100 * time.Millisecond, "@every 10s": 400 * time.Millisecond} {
		s := scenario{lasts: 40 * time.Second, poll: 5 * time.Second, ahead: 5 * time.Minute, kinds: []kind{{spec: spec, least: cost, most: cost}}}
		require.Empty(t, s.run(t))
		require.Zero(t, s.lines, spec)
		every, _ := time.ParseDuration(spec[len("@every "):])
		require.InDelta(t, int(s.lasts/every), s.delivered, 1.5, spec)
	}
}

// A Message that takes longer than its interval has as many occurrences as it can make.
func TestAMessageSlowerThanItsScheduleMissesSome(t *testing.T) {
	t.Parallel()
	for _, misfire := range []Misfire{MisfireLast, MisfireAll, MisfireSkip} {
		s := scenario{lasts: 60 * time.Second, poll: 5 * time.Second, ahead: 5 * time.Minute,
			kinds: []kind{{spec: "@every 1s", misfire: misfire, least: 1500 * time.Millisecond, most: 1500 * time.Millisecond}}}
		require.Empty(t, s.run(t), misfire)
		require.Greater(t, s.delivered, 60/3, misfire)
		require.Positive(t, s.lines, misfire)
		require.Positive(t, s.missed, misfire)
	}
}

// The server's clock is hours ahead for nine seconds, and a program looks within seven and a half.
// Schedules then come back, also in a program that starts later.
func TestSchedulesComeBackWhenTheServersClockWasAhead(t *testing.T) {
	t.Parallel()
	for _, misfire := range []Misfire{MisfireLast, MisfireSkip} {
		for _, restart := range []bool{false, true} {
			s := scenario{lasts: 90 * time.Second, poll: 5 * time.Second, ahead: 5 * time.Minute, kinds: []kind{{spec: "@every 5s", misfire: misfire}},
				events: []event{{what: "clock", at: 20 * time.Second, lasts: 9 * time.Second, by: 6 * time.Hour}}}
			if restart {
				s.events = append(s.events, event{what: "restart", at: 28 * time.Second, lasts: 3 * time.Second})
			}
			require.Empty(t, s.run(t))
			require.Greater(t, s.delivered, 14, "%s, restart %v", misfire, restart)
			require.Equal(t, 1, s.count("The server's clock was ahead"), "%s, restart %v", misfire, restart)
		}
	}
}

// The server's clock is hours ahead for a moment. An occurrence that is planned then, and made when
// the clock has gone back, leaves no hole behind the one that waits.
func TestAnOccurrencePlannedByAClockThatWasAheadIsMadeAnew(t *testing.T) {
	t.Parallel()
	const interval, cost = 20 * time.Second, 1500 * time.Millisecond
	for _, misfire := range []Misfire{MisfireLast, MisfireSkip, MisfireAll} {
		for _, jitter := range []time.Duration{0, time.Minute} {
			s := scenario{lasts: 3 * time.Minute, poll: time.Second / 2, ahead: 2 * time.Second,
				kinds:  []kind{{spec: "@every 20s", misfire: misfire, least: cost, most: cost, jitter: jitter}},
				events: []event{{what: "clock", at: 4 * time.Second, lasts: 1200 * time.Millisecond, by: 2*time.Hour + 25*time.Minute}}}
			require.Empty(t, s.run(t), "%s, jitter %v", misfire, jitter)
			require.Equal(t, 1, s.count("gone back while occurrences"), "%s, jitter %v", misfire, jitter)
			require.Zero(t, s.count("The server's clock was ahead"), "%s, jitter %v", misfire, jitter)
			require.Zero(t, s.missed, "%s, jitter %v", misfire, jitter)
			require.GreaterOrEqual(t, s.delivered, int((s.lasts-jitter)/interval), "%s, jitter %v", misfire, jitter)
		}
	}
}

// A failover shifts the clock by less than a minute, which is waited out.
func TestAFailoverShiftsTheClockALittle(t *testing.T) {
	t.Parallel()
	s := scenario{lasts: 90 * time.Second, poll: 5 * time.Second, ahead: 5 * time.Minute, kinds: []kind{{spec: "@every 5s"}},
		events: []event{{what: "clock", at: 20 * time.Second, lasts: 20 * time.Second, by: 30 * time.Second}}}
	require.Empty(t, s.run(t))
	require.Zero(t, s.count("The server's clock was ahead"))
	require.Equal(t, 1, s.count("The server's clock has gone back"))
	require.InDelta(t, 90/5, s.delivered, 2, "none came twice")
}

// scenario is what schedules, programs and servers do.
type scenario struct {
	seed        int64
	lasts       time.Duration
	poll, ahead time.Duration
	programs    int // more, one after the other; 0: one
	kinds       []kind
	events      []event

	delivered int // occurrences
	lines     int // about schedules, but for those of their begin
	missed    int64
	texts     []string // lines and events
}

// count returns how many lines have a text.
func (s *scenario) count(text string) (n int) {
	for _, line := range s.texts {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// kind is a schedule with a Message of a kind.
type kind struct {
	spec         string
	misfire      Misfire
	least, most  time.Duration // that Message takes
	fails, hangs int           // of 100 calls
	panics       int
	hangsFor     time.Duration
	jitter       time.Duration
}

// event is what happens to all, or to a schedule.
type event struct {
	at, lasts time.Duration
	what      string
	schedule  int
	by        time.Duration
}

func drawScenario(r *rapid.T) *scenario {
	ms := func(name string, least, most int) time.Duration {
		return time.Duration(rapid.IntRange(least, most).Draw(r, name)) * time.Millisecond
	}
	s := &scenario{seed: rapid.Int64Range(0, 1<<40).Draw(r, "seed"), lasts: 4 * time.Minute, poll: ms("poll", 500, 5000)}
	s.ahead = s.poll * time.Duration(rapid.IntRange(4, 60).Draw(r, "ahead"))
	s.programs = rapid.IntRange(1, 3).Draw(r, "programs")
	for range rapid.IntRange(1, 6).Draw(r, "schedules") {
		every := rapid.IntRange(1, 20).Draw(r, "every")
		k := kind{spec: fmt.Sprintf("@every %ds", every)}
		k.misfire = rapid.SampledFrom([]Misfire{MisfireLast, MisfireAll, MisfireSkip}).Draw(r, "misfire")
		k.most = time.Duration(every) * time.Second * time.Duration(rapid.SampledFrom([]int{0, 1, 5, 20, 90, 200}).Draw(r, "cost, percent")) / 100
		k.least = k.most * time.Duration(rapid.IntRange(0, 100).Draw(r, "least, percent")) / 100
		if rapid.Bool().Draw(r, "troubled") {
			k.fails = rapid.SampledFrom([]int{0, 10, 60, 100}).Draw(r, "fails")
			k.panics = rapid.SampledFrom([]int{0, 5}).Draw(r, "panics")
			k.hangs = rapid.SampledFrom([]int{0, 2, 20}).Draw(r, "hangs")
			k.hangsFor = ms("hangs for", 1000, 150_000)
		}
		if rapid.Bool().Draw(r, "jitter") {
			k.jitter = time.Minute
		}
		s.kinds = append(s.kinds, k)
	}
	for range rapid.IntRange(0, 4).Draw(r, "events") {
		e := event{at: ms("at", 1000, 200_000), what: rapid.SampledFrom([]string{"pause", "edit", "redis", "clock", "program"}).Draw(r, "what")}
		e.schedule = rapid.IntRange(0, len(s.kinds)-1).Draw(r, "schedule")
		e.lasts = ms("lasts", 100, 30_000)
		e.by = ms("by", 10_000, 8*3600*1000)
		if e.what == "clock" {
			e.lasts += 2 * s.poll // so that each program sees it
		}
		s.events = append(s.events, e)
	}
	slices.SortFunc(s.events, func(a, b event) int { return int(a.at - b.at) })
	for i := range s.events[:max(len(s.events)-1, 0)] { // they do not overlap
		e, next := &s.events[i], &s.events[i+1]
		next.at = max(next.at, e.at+e.lasts+time.Second)
	}
	return s
}

// sign is a delivery, or the begin of a schedule, whose jitter comes before the first delivery.
type sign struct {
	at     time.Time
	jitter time.Duration
}

// era is what a run of a scenario keeps.
type era struct {
	*scenario
	t    *testing.T
	mini *miniredis.Miniredis

	mu      sync.Mutex
	shift   time.Duration // of the server's clock, from that of the bubble
	cut     bool          // Redis does not answer
	random  *rand.Rand
	waiting map[string]map[int64]time.Time // schedule -> instant -> due
	signs   map[string][]sign              // of life
	said    map[string][]time.Time         // lines; "": of the topic
	missed  map[string][]time.Time         // when missed instants were due, which the next line about such is for
	paused  map[string]bool
	failing bool                     // the log says that Redis does not answer
	slow    map[string]time.Duration // that the next call of Message or Publish takes
}

// takeSlow returns how much longer a call takes. e.mu is held.
func (e *era) takeSlow(what string) time.Duration {
	defer delete(e.slow, what)
	return e.slow[what]
}

// run returns what is wrong.
func (s *scenario) run(t *testing.T) (fault string) {
	mini, err := miniredis.Run()
	require.NoError(t, err)
	defer mini.Close()
	synctest.Test(t, func(t *testing.T) {
		e := &era{scenario: s, t: t, mini: mini, shift: time.Until(begin), random: rand.New(rand.NewPCG(uint64(s.seed), 1)),
			waiting: map[string]map[int64]time.Time{}, signs: map[string][]sign{}, said: map[string][]time.Time{},
			missed: map[string][]time.Time{}, paused: map[string]bool{}}
		fault = e.run()
	})
	return fault
}

func (e *era) run() string {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	for i := range e.kinds {
		e.starts(i)
	}
	var programs []func()
	for range max(e.programs, 1) {
		programs = append(programs, e.program(ctx))
	}
	began := time.Now()
	events := e.events
	var back []event
	client := e.client(false)
	operator, err := admin.New(admin.Config{Client: client})
	if err != nil {
		return err.Error()
	}
	for time.Since(began) < e.lasts {
		time.Sleep(100 * time.Millisecond)
		for len(events) > 0 && time.Since(began) >= events[0].at {
			e.begin(ctx, operator, events[0], &programs)
			back = append(back, events[0])
			events = events[1:]
		}
		back = slices.DeleteFunc(back, func(b event) bool {
			over := time.Since(began) >= b.at+b.lasts
			if over {
				e.end(ctx, operator, b, &programs)
			}
			return over
		})
		e.tick()
	}
	fault := e.judge()
	for i := range e.kinds {
		if _, _, records, err := queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, "t").Schedules(ctx, "", []string{e.name(i)}); err == nil {
			e.scenario.missed += records[0].Missed
		}
	}
	end()
	for _, stop := range programs {
		stop()
	}
	_ = client.Close()
	return fault
}

func (e *era) name(i int) string { return fmt.Sprint("s", i) }

// server is what the server's clock shows.
func (e *era) server() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().Add(e.shift)
}

// client is a connection to Redis whose clock is that of the bubble, shifted.
func (e *era) client(fails bool) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: e.mini.Addr(), MaxRetries: -1, ReadTimeout: -1, WriteTimeout: -1})
	c.AddHook(redistest.BeforeEach(func(redis.Cmder) error {
		e.mini.SetTime(e.server())
		e.mu.Lock()
		defer e.mu.Unlock()
		if fails && e.cut {
			return errors.New("no answer")
		}
		return nil
	}))
	return c
}

// program starts a program, and returns what waits for its end.
func (e *era) program(ctx context.Context) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	c := e.client(true)
	pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c}, nil)
	require.NoError(e.t, err)
	noted := &noting{pub, e, map[string]time.Duration{}}
	p, err := New(Config{Publisher: noted, Poll: e.poll, Ahead: e.ahead}, &listener{e: e})
	require.NoError(e.t, err)
	for i := range e.kinds {
		noted.every[e.name(i)], err = time.ParseDuration(e.kinds[i].spec[len("@every "):])
		require.NoError(e.t, err)
		require.NoError(e.t, p.Add(e.schedule(i)))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.topics["t"].run(ctx, nil)
	}()
	return func() {
		end()
		<-ended
		p.making.Wait()
		_ = pub.Close()
		_ = c.Close()
	}
}

func (e *era) schedule(i int) Schedule {
	k := e.kinds[i]
	return Schedule{Name: e.name(i), Topic: "t", Spec: k.spec, Misfire: k.misfire, Jitter: k.jitter, Message: func(o Occurrence) (*message.Message, error) {
		e.mu.Lock()
		takes, luck := k.least+time.Duration(e.random.Int64N(int64(k.most-k.least)+1)), e.random.IntN(100)
		takes += e.takeSlow("message")
		e.mu.Unlock()
		time.Sleep(takes)
		switch {
		case luck < k.panics:
			panic("oops")
		case luck < k.panics+k.hangs:
			time.Sleep(k.hangsFor)
		case luck < k.panics+k.hangs+k.fails:
			return nil, errors.New("it failed")
		}
		return hello(o)
	}}
}

// noting is a decorator that notes what is published.
type noting struct {
	message.Publisher
	e     *era
	every map[string]time.Duration // of its program's schedules
}

func (n *noting) Unwrap() message.Publisher { return n.Publisher }

func (n *noting) Publish(topic string, messages ...*message.Message) error {
	n.e.mu.Lock()
	takes := n.e.takeSlow("publish")
	n.e.mu.Unlock()
	time.Sleep(takes)
	err := n.Publisher.Publish(topic, messages...)
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	for _, msg := range messages {
		o, _ := FromMessage(msg)
		if g := inside.GuardOf(msg.Context(), o.ID()); g != nil && g.Verdict == queue.Passed {
			due, _ := time.Parse(time.RFC3339Nano, msg.Metadata[redisdelay.DelayUntilKey])
			if n.e.waiting[o.Schedule] == nil {
				n.e.waiting[o.Schedule] = map[int64]time.Time{}
			}
			n.e.waiting[o.Schedule][o.At.UnixMilli()] = due
			n.skipped(o, due)
		}
	}
	n.e.deliverLocked() // what is late comes at once, and not after lines that are about the next one
	return err
}

// skipped notes the instants between an occurrence and the one before. A line about them follows.
// e.mu is held.
func (n *noting) skipped(o Occurrence, due time.Time) {
	if o.Previous.IsZero() {
		return
	}
	for at := o.Previous.Add(n.every[o.Schedule]); at.Before(o.At); at = at.Add(n.every[o.Schedule]) {
		n.e.missed[o.Schedule] = append(n.e.missed[o.Schedule], due.Add(at.Sub(o.At)-n.e.shift))
	}
}

// starts notes that a schedule counts from now on. Its jitter comes before the first occurrence.
func (e *era) starts(i int) {
	s := e.schedule(i)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.signs[s.Name] = append(e.signs[s.Name], sign{time.Now(), s.offset()})
}

// drop forgets what waits, because it was taken back.
func (e *era) drop(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.waiting[name])
}

// tick delivers what has become due, and notes that the log still says that Redis does not answer.
func (e *era) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failing {
		e.said[""] = append(e.said[""], time.Now())
	}
	e.deliverLocked()
}

// deliverLocked delivers what is due by the server's clock. e.mu is held.
func (e *era) deliverLocked() {
	now := time.Now().Add(e.shift)
	for name, waits := range e.waiting {
		for at, due := range waits {
			if !due.After(now) {
				delete(waits, at)
				e.signs[name] = append(e.signs[name], sign{at: time.Now()})
				e.scenario.delivered++
			}
		}
	}
}

func (e *era) begin(ctx context.Context, operator *admin.Admin, v event, programs *[]func()) {
	name := e.name(v.schedule)
	e.note(fmt.Sprintf("begins: %+v", v))
	switch v.what {
	case "pause":
		if _, err := operator.PauseSchedule(ctx, "t", name); err == nil {
			e.drop(name)
			e.mu.Lock()
			e.paused[name] = true
			e.mu.Unlock()
		}
	case "edit": // a program that starts has another spec
		k := &e.kinds[v.schedule]
		k.spec = fmt.Sprintf("@every %ds", 1+int(v.by/time.Second)%20)
		*programs = append(*programs, e.program(ctx))
	case "redis":
		e.mu.Lock()
		e.cut = true
		e.mu.Unlock()
	case "message", "publish":
		e.mu.Lock()
		e.slow = map[string]time.Duration{v.what: v.by}
		e.mu.Unlock()
	case "clock":
		e.mu.Lock()
		e.shift += v.by
		e.mu.Unlock()
	case "restart": // for as long as the event lasts, no program runs
		(*programs)[0]()
		*programs = nil
	case "program":
		*programs = append(*programs, e.program(ctx))
		ended := make(chan struct{})
		stop := (*programs)[0]
		go func() { // its Message may hang
			defer close(ended)
			stop()
		}()
		*programs = append((*programs)[1:], func() { <-ended })
	}
}

func (e *era) end(ctx context.Context, operator *admin.Admin, v event, programs *[]func()) {
	name := e.name(v.schedule)
	e.note(fmt.Sprintf("ends: %+v", v))
	switch v.what {
	case "pause":
		if operator.ResumeSchedule(ctx, "t", name) == nil {
			e.mu.Lock()
			e.paused[name] = false
			e.signs[name] = nil // what was before does not count
			e.mu.Unlock()
			e.starts(v.schedule)
		}
	case "restart":
		*programs = append(*programs, e.program(ctx))
	case "redis":
		e.mu.Lock()
		e.cut = false
		e.mu.Unlock()
	case "clock":
		e.mu.Lock()
		e.shift -= v.by
		e.mu.Unlock()
	}
}

func (e *era) note(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.texts = append(e.texts, fmt.Sprintf("%v %s", since2000(time.Now()), text))
}

// since2000 returns the age of a bubble at a time.
func since2000(t time.Time) time.Duration { return t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

// judge returns where a schedule was silent.
func (e *era) judge() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for i, k := range e.kinds {
		name := e.name(i)
		if e.paused[name] {
			continue
		}
		longest := 20 * time.Second // of any spec, because of edits
		if !slices.ContainsFunc(e.events, func(v event) bool { return v.what == "edit" && v.schedule == i }) {
			longest, _ = time.ParseDuration(k.spec[len("@every "):])
		}
		signs := append(slices.Clone(e.signs[name]), sign{at: now})
		lines := append(slices.Clone(e.said[name]), e.said[""]...)
		slices.SortFunc(signs, func(a, b sign) int { return a.at.Compare(b.at) })
		slices.SortFunc(lines, time.Time.Compare)
		for s := range len(signs) - 1 {
			limit := longest + e.poll*3/2 + time.Second/2 + signs[s].jitter
			for from, to := signs[s].at, signs[s+1].at; to.Sub(from) > limit; {
				at := slices.IndexFunc(lines, func(l time.Time) bool { return !l.Before(from) })
				if at < 0 || lines[at].Sub(from) > limit {
					return fmt.Sprintf("schedule %s (%+v) was silent from %v to %v, with no line until %v after %v\n%s", name, k,
						since2000(signs[s].at), since2000(to), limit, since2000(from), strings.Join(e.texts, "\n"))
				}
				from = lines[at].Add(time.Nanosecond)
				limit = max(limit, time.Minute+e.poll*3/2+time.Second) // lines repeat once a minute
			}
		}
	}
	return ""
}

// listener is a logger that notes when something was said of a schedule.
type listener struct {
	watermill.NopLogger
	e    *era
	name string
}

func (l *listener) With(fields watermill.LogFields) watermill.LoggerAdapter {
	name, _ := fields["schedule"].(string)
	if name == "" {
		name = l.name
	}
	return &listener{e: l.e, name: name}
}

func (l *listener) say(msg string, err error, fields watermill.LogFields) {
	if msg == "Began a schedule" || msg == "Replaced the definition of a schedule" {
		l.e.note(fmt.Sprintf("%s: %s", l.name, msg))
		if i := 0; msg != "Began a schedule" {
			_, _ = fmt.Sscanf(l.name, "s%d", &i)
			l.e.drop(l.name)
			l.e.starts(i)
		}
		return
	}
	l.e.note(fmt.Sprintf("%s: %s %v %v", l.name, msg, err, fields))
	if err != nil && errors.Is(err, errAhead) {
		l.e.drop(l.name)
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.failing = l.name == "" && strings.HasPrefix(msg, "Cannot look") || l.e.failing && (l.name != "" || !strings.HasPrefix(msg, "Looking"))
	l.e.said[l.name] = append(l.e.said[l.name], time.Now())
	if wait, ok := fields["for"].(time.Duration); ok { // the schedule rests that long
		l.e.said[l.name] = append(l.e.said[l.name], time.Now().Add(wait))
	}
	if strings.HasPrefix(msg, "Occurrences of the schedule were missed") { // also those that were to come yet
		l.e.said[l.name] = append(l.e.said[l.name], l.e.missed[l.name]...)
		l.e.missed[l.name] = nil
	}
	l.e.scenario.lines++
}

func (l *listener) Error(msg string, err error, fields watermill.LogFields) { l.say(msg, err, fields) }
func (l *listener) Info(msg string, fields watermill.LogFields)             { l.say(msg, nil, fields) }

// A Message that takes long once, and a Publish that does, leave out no more than what passes
// meanwhile. Nobody says that the server's clock was ahead.
func TestOneSlowCallLeavesOutOnlyWhatPasses(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"message", "publish"} {
		s := scenario{lasts: 4 * time.Minute, poll: 5 * time.Second, ahead: 20 * time.Second, kinds: []kind{{spec: "@every 1s"}},
			events: []event{{what: what, at: 30 * time.Second, by: 80 * time.Second}}}
		require.Empty(t, s.run(t), what)
		require.Zero(t, s.count("The server's clock"), "%s: %s", what, strings.Join(s.texts, "\n"))
		require.Greater(t, s.delivered, 240-80-10, "%s: %s", what, strings.Join(s.texts, "\n"))
	}
}
