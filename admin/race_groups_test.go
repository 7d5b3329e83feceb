package admin_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// fate is the planned outcome of a message in each group.
type fate string

const (
	settles  fate = "acked, unless it is cancelled"
	keeps    fate = "kept out, as another has its name, or acked"
	rejects  fate = "refused, as another has its name, or acked"
	limited  fate = "refused, as the topic is full, or acked"
	vanishes fate = "dropped, as it is too late, or acked"
	purged   fate = "dead, and purged"
	moved    fate = "dead, and moved or deleted"
	deleted  fate = "dead, and deleted"
)

var fates = []fate{settles, keeps, rejects, limited, vanishes, purged, moved, deleted}

// groupRace is a pipeline of two groups, a third that comes and goes, and operators.
type groupRace struct {
	*setup
	t       *testing.T
	n       int
	refused []atomic.Bool
	taken   []atomic.Bool             // cancelled
	acked   map[string][]atomic.Int32 // by group
	removed map[string][]atomic.Int32 // deleted, by group
	there   []atomic.Int32            // how often it was moved
	purged  map[string]*atomic.Int64  // by group
	moved   map[string]*atomic.Int64  // by group
	failed  atomic.Pointer[error]
	stop    chan struct{}

	// Repair starts again when the set of groups changes, and finally gives up.
	changing sync.Mutex
}

// Each message has exactly one outcome in each group, independent of the other group.
func TestOperationsOnARunningPipelineOfGroups(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		n := raced
		if s.Mini != nil {
			n /= 5 // it is slower
		}
		r := &groupRace{setup: s, t: t, n: n, refused: make([]atomic.Bool, n), taken: make([]atomic.Bool, n),
			there: make([]atomic.Int32, n), acked: map[string][]atomic.Int32{}, removed: map[string][]atomic.Int32{},
			purged: map[string]*atomic.Int64{}, moved: map[string]*atomic.Int64{}, stop: make(chan struct{})}
		for _, g := range []string{"a", "b"} {
			r.acked[g], r.removed[g] = make([]atomic.Int32, n), make([]atomic.Int32, n)
			r.purged[g], r.moved[g] = &atomic.Int64{}, &atomic.Int64{}
		}
		r.register(t, "a", "b")
		r.run()
		for _, g := range []string{"a", "b"} {
			r.judge(g)
		}
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
		require.Zero(t, report.Unconfirmed)
	})
}

func (r *groupRace) fate(i int) fate { return fates[i%len(fates)] }

func (r *groupRace) fail(err error) {
	if err != nil {
		r.failed.CompareAndSwap(nil, &err)
	}
}

func (r *groupRace) run() {
	t := r.t
	for _, g := range []string{"a", "b"} {
		for range 2 {
			messages := r.subscribe(t, g, func(c *redisdelay.SubscriberConfig) {
				c.MaxInFlight, c.MaxDeliveries = 8, -1
				c.Backoff = func(int) time.Duration { return time.Duration(rand.IntN(20)) * time.Millisecond }
			})
			go r.consume(g, messages)
		}
	}
	elsewhere, err := r.subscriber(t, "").Subscribe(ctx, "moved")
	require.NoError(t, err)
	go func() {
		for msg := range elsewhere {
			r.there[r.number(msg)].Add(1)
			msg.Ack()
		}
	}()

	var operators, publishers sync.WaitGroup
	loop := func(do func()) {
		operators.Go(func() {
			for {
				select {
				case <-r.stop:
					return
				default:
					do()
				}
			}
		})
	}
	for range 4 {
		loop(r.operate)
	}
	loop(r.bury)
	loop(r.comeAndGo)
	doomed := r.publisher(t)
	for range 2 {
		loop(func() { r.doom(doomed) })
	}
	const writers = 5
	for w := range writers {
		publishers.Go(func() {
			p := r.publisher(t)
			narrow := r.publisher(t, func(c *redisdelay.PublisherConfig) { c.MaxWaiting = 200 })
			for i := w; i < r.n; i += writers {
				r.fail(r.publishOne(p, narrow, i))
			}
		})
	}
	publishers.Wait()
	eventually(t, func() bool { return r.stats(t).Waiting == 0 }, "all are due")
	close(r.stop)
	operators.Wait()
	require.NoError(t, only(r.admin.Resume(ctx, topic, admin.ResumeOptions{})))
	for _, g := range []string{"a", "b"} {
		require.NoError(t, only(r.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup(g)})))
		eventually(t, func() bool {
			stats := r.group(t, g)
			return stats.Ready+stats.InHand+stats.Retrying == 0
		}, "all are delivered")
	}
	eventually(t, func() bool {
		stats, err := r.admin.Stats(ctx, "moved")
		return errors.Is(err, admin.ErrNotFound) || err == nil && stats.Messages == 0
	}, "those that were moved are delivered there")
	r.did(only(r.admin.DeleteTopic(ctx, "doomed", admin.DeleteOptions{})))
	require.ErrorIs(t, only(r.admin.Stats(ctx, "doomed")), admin.ErrNotFound)
	if err := only(r.admin.DeleteGroup(ctx, topic, "comes and goes", admin.DeleteOptions{})); !errors.Is(err, admin.ErrNotFound) {
		require.NoError(t, err)
	}
	if err := r.failed.Load(); err != nil {
		require.NoError(t, *err)
	}
}

func (r *groupRace) number(msg *message.Message) int {
	i, err := strconv.Atoi(string(msg.Payload))
	r.fail(err)
	return i
}

func (r *groupRace) publishOne(p, narrow *redisdelay.Publisher, i int) error {
	msg := delayed(strconv.Itoa(i), time.Duration(rand.IntN(1000))*time.Millisecond)
	msg.Metadata.Set("fate", string(r.fate(i)))
	var refusal error
	switch r.fate(i) {
	case settles:
		redisdelay.SetDelayID(msg, "own "+strconv.Itoa(i), redisdelay.DelayIDReject)
	case keeps:
		redisdelay.SetDelayID(msg, fmt.Sprint("kept ", i/400), redisdelay.DelayIDKeep)
	case rejects:
		redisdelay.SetDelayID(msg, fmt.Sprint("rejected ", i/400), redisdelay.DelayIDReject)
		refusal = redisdelay.ErrExists
	case limited:
		p, refusal = narrow, redisdelay.ErrTopicFull
	case vanishes:
		redisdelay.ExpireAfter(msg, time.Duration(1+rand.IntN(20))*time.Millisecond, redisdelay.ExpiryDrop)
	default:
		redisdelay.SetMaxDeliveries(msg, 1)
	}
	err := p.Publish(topic, msg)
	if refusal != nil && errors.Is(err, refusal) {
		r.refused[i].Store(true)
		return nil
	}
	return err
}

func (r *groupRace) consume(group string, messages <-chan *message.Message) {
	for msg := range messages {
		i := r.number(msg)
		if r.taken[i].Load() || r.refused[i].Load() || r.acked[group][i].Load() > 0 || r.removed[group][i].Load() > 0 {
			r.fail(fmt.Errorf("message %d was delivered in group %s after its end", i, group))
		}
		switch fate := r.fate(i); {
		case fate == purged || fate == moved || fate == deleted || rand.IntN(8) == 0:
			msg.Nack()
		default:
			r.acked[group][i].Add(1)
			msg.Ack()
		}
	}
}

// operate runs a random operation.
func (r *groupRace) operate() {
	group := []string{"a", "b"}[rand.IntN(2)]
	switch rand.IntN(12) {
	case 10:
		m, err := r.admin.Get(ctx, topic, admin.ByDelayID("own "+strconv.Itoa(rand.IntN(r.n/len(fates))*len(fates))))
		r.did(err)
		if err == nil && fate(m.Metadata["fate"]) != settles {
			r.fail(fmt.Errorf("message %s has the name of another", m.ID))
		}
	case 11:
		r.fail(only(r.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Minute}))) // none is
		topics, _, err := r.admin.Topics(ctx, "", 100)
		r.fail(err)
		if !slices.Contains(topics, topic) {
			r.fail(fmt.Errorf("the topic is not among %q", topics))
		}
	case 0, 1, 2:
		i := rand.IntN(r.n/len(fates)) * len(fates)
		err := r.admin.Cancel(ctx, topic, admin.ByDelayID("own "+strconv.Itoa(i)))
		if err == nil && r.taken[i].Swap(true) {
			err = fmt.Errorf("message %d was cancelled twice", i)
		}
		r.did(err)
	case 3:
		i := rand.IntN(r.n/len(fates)) * len(fates)
		r.did(r.admin.Reschedule(ctx, topic, admin.ByDelayID("own "+strconv.Itoa(i)), admin.In(time.Duration(rand.IntN(100))*time.Millisecond)))
	case 4, 5:
		letters, err := r.admin.List(ctx, topic, admin.Query{State: admin.Dead, Group: group, Limit: 50,
			Filter: admin.Filter{Match: ofFate(deleted, moved)}})
		r.fail(err)
		if len(letters.Messages) == 0 {
			return
		}
		m := letters.Messages[rand.IntN(len(letters.Messages))]
		if rand.IntN(3) == 0 {
			r.did(r.admin.Requeue(ctx, topic, admin.GroupMessage{Group: group, ID: m.ID}))
			return
		}
		if err = r.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: group, ID: m.ID}); err == nil {
			i, _ := strconv.Atoi(string(m.Payload))
			r.removed[group][i].Add(1)
		}
		r.did(err)
	case 6:
		r.fail(only(r.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup(group)})))
		r.fail(only(r.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup(group)})))
	case 7:
		r.fail(only(r.admin.Pause(ctx, topic, admin.PauseOptions{})))
		r.fail(only(r.admin.Resume(ctx, topic, admin.ResumeOptions{})))
	case 8:
		match := ofFate(deleted, moved)
		r.fail(only(r.admin.RequeueAll(ctx, topic, admin.Bulk{Group: group, Filter: admin.Filter{
			Match: func(m admin.Message) bool { return match(m) && rand.IntN(4) == 0 }}})))
	case 9:
		if rand.IntN(20) == 0 {
			r.changing.Lock()
			defer r.changing.Unlock()
			repaired, err := r.admin.Repair(ctx, topic)
			r.fail(err)
			if found := repaired.Violations(); len(found) > 0 {
				r.fail(fmt.Errorf("violations: %v", found))
			}
		}
	}
}

// ofFate matches messages of some fates.
func ofFate(fates ...fate) func(admin.Message) bool {
	return func(m admin.Message) bool { return slices.Contains(fates, fate(m.Metadata["fate"])) }
}

// bury purges and moves dead letters. Nothing else purges, so that the test knows what was purged.
// Others requeue and delete at the same time what it moves.
func (r *groupRace) bury() {
	group := []string{"a", "b"}[rand.IntN(2)]
	some := func(f fate) admin.Bulk {
		return admin.Bulk{Group: group, Filter: admin.Filter{Metadata: map[string]string{"fate": string(f)}, Match: func(admin.Message) bool { return rand.IntN(3) > 0 }}}
	}
	n, err := r.admin.PurgeDead(ctx, topic, some(purged))
	r.fail(err)
	r.purged[group].Add(int64(n))
	moving := some(moved)
	moving.To = "moved"
	n, err = r.admin.MoveDead(ctx, topic, moving)
	r.fail(err)
	r.moved[group].Add(int64(n))
}

// doom creates and deletes a topic, concurrently with others.
func (r *groupRace) doom(p *redisdelay.Publisher) {
	for range rand.IntN(20) {
		r.fail(p.Publish("doomed", delayed("x", time.Duration(rand.IntN(10))*time.Millisecond)))
	}
	r.did(only(r.admin.DeleteTopic(ctx, "doomed", admin.DeleteOptions{})))
}

// comeAndGo creates a group, publishes some messages, and removes the group with all that it has.
func (r *groupRace) comeAndGo() {
	const name = "comes and goes"
	r.changing.Lock()
	defer r.changing.Unlock()
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: r.Client, KeyPrefix: r.Prefix, ConsumerGroup: name,
		MaxInFlight: 5, CloseTimeout: 20 * time.Second}, nil) // the others keep Redis busy
	r.fail(err)
	messages, err := sub.Subscribe(ctx, topic)
	r.fail(err)
	for range rand.IntN(30) {
		select {
		case msg := <-messages:
			if rand.IntN(2) == 0 {
				msg.Ack()
			} else {
				msg.Nack()
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.fail(sub.Close())
	r.fail(only(r.admin.DeleteGroup(ctx, topic, name, admin.DeleteOptions{})))
}

// did records the outcome of an operation that may come too late.
func (r *groupRace) did(err error) {
	if !errors.Is(err, admin.ErrTooLate) && !errors.Is(err, admin.ErrNotFound) && !errors.Is(err, admin.ErrExists) {
		r.fail(err)
	}
}

func (r *groupRace) judge(group string) {
	t := r.t
	dead := map[int]int32{}
	for _, m := range r.list(t, group, admin.Dead) {
		i, err := strconv.Atoi(string(m.Payload))
		require.NoError(t, err)
		dead[i]++
	}
	unknown := map[fate]int{}
	names := map[string]bool{} // under which one was delivered
	for i := range r.n {
		fate := r.fate(i)
		ends := r.acked[group][i].Load() + r.removed[group][i].Load() + dead[i]
		if r.taken[i].Load() && r.acked[group][i].Load() == 0 { // a group may be done with it, while others wait for a retry
			ends++
		}
		if r.refused[i].Load() {
			ends++
		}
		require.LessOrEqual(t, ends, int32(1), "message %d, to be %s, has several ends in group %s", i, fate, group)
		if ends == 0 {
			unknown[fate]++
		}
		switch {
		case fate == keeps:
			names[fmt.Sprint(i/400)] = names[fmt.Sprint(i/400)] || ends == 1
			require.Equal(t, r.acked["a"][i].Load(), r.acked["b"][i].Load(), "message %d is kept out of one group", i)
		case fate == moved || fate == purged || fate == deleted:
			require.Zero(t, r.acked[group][i].Load())
		default:
			require.Zero(t, dead[i], "message %d, to be %s, is dead", i, fate)
		}
		require.LessOrEqual(t, r.there[i].Load(), int32(2))
	}
	for _, fate := range []fate{settles, rejects, limited, deleted} {
		require.Zero(t, unknown[fate], "messages to be %s have no end in group %s", fate, group)
	}
	for name, delivered := range names {
		require.True(t, delivered, "none of the messages named %s was delivered", name)
	}
	require.EqualValues(t, r.purged[group].Load(), unknown[purged])
	require.EqualValues(t, r.moved[group].Load(), unknown[moved])
	eventually(t, func() bool { return r.group(t, group).Counters.Dropped >= unknown[vanishes] }, "subscriptions tell what they dropped")
	require.Equal(t, r.group(t, group).Counters.Dropped, unknown[vanishes])
	var there int64
	for i := range r.there {
		there += int64(r.there[i].Load())
	}
	require.Equal(t, r.moved["a"].Load()+r.moved["b"].Load(), there, "what was moved came there once for each group")
}
