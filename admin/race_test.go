package admin_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// kind is the kind of a message in the race.
type kind int

const (
	plain    kind = iota
	named         // has a delay ID of its own
	debounce      // shares one with others, that replace it
	once          // shares one with another, that is kept out
	dropped       // may come too late, and is dropped then
	buried        // may come too late, and is a dead letter then
	mortal        // dies of its first nack
	kinds
)

// ending is the outcome of a message.
type ending struct {
	acked, cancelled, deleted, dead, keptOut int32
}

func (e *ending) known() int32 { return e.acked + e.cancelled + e.deleted + e.dead }

// race is a pipeline with operators.
type race struct {
	*setup
	t       *testing.T
	n       int
	endings []ending
	failed  atomic.Pointer[error]
	done    atomic.Int32 // operations that did something
	late    atomic.Int32 // that came too late
}

// raced is how many messages race with operations on a real server. `make stress` has more.
var raced = 2_500

// Operators work while messages are published, delivered, fail, become dead and expire. Each
// message has exactly one end.
func TestOperationsOnARunningPipeline(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		n := raced
		if s.Mini != nil {
			n /= 3 // it is slower
		}
		r := &race{setup: s, t: t, n: n, endings: make([]ending, n)}
		r.register(t, "a")
		r.run()
		r.judge()
	})
}

func (r *race) kind(i int) kind { return kind(i) % kinds }

func (r *race) fail(err error) {
	if err != nil {
		r.failed.CompareAndSwap(nil, &err)
	}
}

func (r *race) run() {
	t := r.t
	stop := make(chan struct{})
	var operators, publishers sync.WaitGroup
	for g := range 3 {
		messages := r.subscribe(t, "a", func(c *redisdelay.SubscriberConfig) {
			c.MaxInFlight = 8
			c.MaxDeliveries = -1
			c.Backoff = func(int) time.Duration { return time.Duration(rand.IntN(30)) * time.Millisecond }
		})
		go r.consume(messages, rand.New(rand.NewPCG(uint64(g), 1)))
	}
	for range 8 {
		operators.Go(func() { r.operate(stop) })
	}
	const writers = 7 // so that those who share a delay ID come from one
	for w := range writers {
		publishers.Go(func() {
			p := r.publisher(t)
			for i := w; i < r.n; i += writers {
				r.fail(r.publishOne(p, i))
			}
		})
	}
	publishers.Wait()
	eventually(t, func() bool { return r.stats(t).Waiting == 0 }, "all are due")
	close(stop)
	operators.Wait()
	_, err := r.admin.Resume(ctx, topic, admin.ResumeOptions{})
	require.NoError(t, err)
	_, err = r.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("a")})
	require.NoError(t, err)
	eventually(t, func() bool {
		stats := r.stats(t)
		g := stats.Groups[0]
		return stats.Waiting+g.Ready+g.InHand+g.Retrying == 0
	}, "all are delivered")
	if err := r.failed.Load(); err != nil {
		require.NoError(t, *err)
	}
}

// delayID returns the delay ID of a message: its own, or shared by ten consecutive messages of a
// writer.
func (r *race) delayID(i int) string {
	switch r.kind(i) {
	case debounce, once:
		return fmt.Sprintf("shared %d:%d", r.kind(i), i/(7*10))
	}
	return "own " + strconv.Itoa(i)
}

func (r *race) publishOne(p *redisdelay.Publisher, i int) error {
	msg := delayed(strconv.Itoa(i), time.Duration(rand.IntN(2000))*time.Millisecond)
	switch r.kind(i) {
	case named, mortal:
		redisdelay.SetDelayID(msg, r.delayID(i), redisdelay.DelayIDReject)
	case debounce:
		redisdelay.SetDelayID(msg, r.delayID(i), redisdelay.DelayIDReplace)
	case once:
		redisdelay.SetDelayID(msg, r.delayID(i), redisdelay.DelayIDReject)
		redisdelay.SetDelayIDWindow(msg, time.Hour)
	case dropped:
		redisdelay.ExpireAfter(msg, time.Duration(1+rand.IntN(20))*time.Millisecond, redisdelay.ExpiryDrop)
	case buried:
		redisdelay.ExpireAfter(msg, time.Duration(1+rand.IntN(20))*time.Millisecond, redisdelay.ExpiryDead)
	}
	if r.kind(i) == mortal {
		redisdelay.SetMaxDeliveries(msg, 1)
	}
	err := p.Publish(topic, msg)
	if r.kind(i) == once && errors.Is(err, redisdelay.ErrExists) {
		atomic.AddInt32(&r.endings[i].keptOut, 1)
		return nil
	}
	return err
}

func (r *race) consume(messages <-chan *message.Message, random *rand.Rand) {
	for msg := range messages {
		i, err := strconv.Atoi(string(msg.Payload))
		r.fail(err)
		e := &r.endings[i]
		if known := atomic.LoadInt32(&e.acked) + atomic.LoadInt32(&e.cancelled) + atomic.LoadInt32(&e.deleted); known > 0 {
			r.fail(fmt.Errorf("message %d was delivered after its end: %+v", i, e))
		}
		switch chance := random.IntN(10); {
		case chance == 0:
			msg.Nack()
		case chance == 1:
			redisdelay.DelayFor(msg, 0) // back to the front
			msg.Nack()
		default:
			atomic.AddInt32(&e.acked, 1)
			msg.Ack()
		}
	}
}

// operate runs random operations.
func (r *race) operate(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		switch rand.IntN(12) {
		case 0, 1, 2:
			r.cancel(r.any())
		case 3, 4:
			r.did(r.admin.Reschedule(ctx, topic, r.anyRef(), admin.In(time.Duration(rand.IntN(100))*time.Millisecond)))
		case 5:
			r.did(r.admin.Reschedule(ctx, topic, r.anyRef(), admin.When{}))
		case 6, 7:
			r.dead()
		case 8:
			_, err := r.admin.Pause(ctx, topic, admin.PauseOptions{})
			r.fail(err)
			_, err = r.admin.Resume(ctx, topic, admin.ResumeOptions{})
			r.fail(err)
		case 9:
			_, err := r.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a")})
			r.fail(err)
			_, err = r.admin.Stats(ctx, topic)
			r.fail(err)
			_, err = r.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("a")})
			r.fail(err)
		case 10:
			_, err := r.admin.Upcoming(ctx, topic, admin.Load{Width: 10 * time.Millisecond, Buckets: 50, Group: "a"})
			r.fail(err)
		case 11:
			if rand.IntN(20) == 0 {
				repaired, err := r.admin.Repair(ctx, topic)
				r.fail(err)
				if found := repaired.Violations(); len(found) > 0 {
					r.fail(fmt.Errorf("violations: %v", found))
				}
			}
		}
	}
}

// did records the outcome of an operation that may come too late.
func (r *race) did(err error) {
	switch {
	case err == nil:
		r.done.Add(1)
	case errors.Is(err, admin.ErrTooLate), errors.Is(err, admin.ErrNotFound), errors.Is(err, admin.ErrExists):
		r.late.Add(1)
	default:
		r.fail(err)
	}
}

// any returns some waiting message and its name; -1 if none was found.
func (r *race) any() (i int, ref admin.Ref) {
	if rand.IntN(2) == 0 {
		i := rand.IntN(r.n)
		switch r.kind(i) {
		case named, mortal:
			return i, admin.ByDelayID(r.delayID(i))
		}
	}
	state := admin.Waiting
	if rand.IntN(3) == 0 {
		state = admin.Retrying
	}
	page, err := r.admin.List(ctx, topic, admin.Query{State: state, Group: "a", Limit: 20})
	r.fail(err)
	if len(page.Messages) == 0 {
		return -1, admin.Ref{}
	}
	m := page.Messages[rand.IntN(len(page.Messages))]
	i, err = strconv.Atoi(string(m.Payload))
	r.fail(err)
	return i, admin.ByID(m.ID)
}

func (r *race) anyRef() admin.Ref {
	for {
		if i, ref := r.any(); i >= 0 {
			return ref
		}
		if r.failed.Load() != nil {
			return admin.ByID("none")
		}
	}
}

func (r *race) cancel(i int, ref admin.Ref) {
	if i < 0 {
		return
	}
	err := r.admin.Cancel(ctx, topic, ref)
	if err == nil {
		atomic.AddInt32(&r.endings[i].cancelled, 1)
	}
	r.did(err)
}

// dead deletes or requeues dead letters.
func (r *race) dead() {
	if rand.IntN(5) == 0 {
		n, err := r.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a"})
		r.fail(err)
		r.done.Add(int32(n))
		return
	}
	page, err := r.admin.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a", Limit: 20})
	r.fail(err)
	if len(page.Messages) == 0 {
		return
	}
	m := page.Messages[rand.IntN(len(page.Messages))]
	if rand.IntN(2) == 0 {
		r.did(r.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: m.ID}))
		return
	}
	err = r.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "a", ID: m.ID})
	if err == nil {
		i, err := strconv.Atoi(string(m.Payload))
		r.fail(err)
		atomic.AddInt32(&r.endings[i].deleted, 1)
	}
	r.did(err)
}

func (r *race) judge() {
	t := r.t
	for _, m := range r.list(t, "a", admin.Dead) {
		i, err := strconv.Atoi(string(m.Payload))
		require.NoError(t, err)
		r.endings[i].dead++
	}
	unknown := map[kind]int{}
	last := map[string]int{} // of those that replace one another
	shared := map[string]int{}
	for i := range r.endings {
		e := &r.endings[i]
		require.LessOrEqual(t, e.known(), int32(1), "message %d has several ends: %+v", i, e)
		switch {
		case e.keptOut > 0:
			require.Zero(t, e.known(), "message %d was refused: %+v", i, e)
		case e.known() == 0:
			unknown[r.kind(i)]++
		}
		switch r.kind(i) {
		case debounce:
			last[fmt.Sprint(r.delayID(i), " of writer ", i%7)] = i
		case once:
			if e.keptOut == 0 {
				shared[r.delayID(i)]++
			}
		}
	}
	for _, k := range []kind{plain, named, once, buried, mortal} {
		require.Zero(t, unknown[k], "messages of kind %d have no end", k)
	}
	eventually(t, func() bool { return r.group(t, "a").Counters.Dropped >= unknown[dropped] }, "subscriptions tell what they dropped")
	g := r.group(t, "a")
	require.Equal(t, g.Counters.Dropped, unknown[dropped])
	for _, i := range last { // nothing replaced it
		require.EqualValues(t, 1, r.endings[i].known(), "message %d was the last of its name: %+v", i, r.endings[i])
	}
	report, err := r.admin.Check(ctx, topic)
	require.NoError(t, err)
	require.Empty(t, report.Violations())
	require.Zero(t, report.Unconfirmed)
	require.Equal(t, report.Messages, g.Dead)
	require.Positive(t, r.done.Load())
	if os.Getenv("VERBOSE") != "" {
		fmt.Println("operations done:", r.done.Load(), "too late:", r.late.Load(), "replaced:", unknown[debounce], "dropped:", unknown[dropped],
			"dead:", g.Dead)
	}
}
