package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A load is what goes on while something fails: publishers of messages with and without delays,
// some of which are nacked, some cancelled, some die, and consumers, in two groups.
type load struct {
	w          *faulttest.World
	publishers []*faulttest.Running
	consumers  []*faulttest.Running
}

const loadDeliveries = 4

// mixed is what the handlers of a load do.
var mixed = []string{
	faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Ack,
	faulttest.Nack(1, 50*time.Millisecond), faulttest.Nack(1, 0), faulttest.Nack(2, -1), faulttest.Nack(loadDeliveries, time.Millisecond),
}

// newLoad makes a world on a server and puts it to work: by way of place, or directly if that is
// empty. change is for the workers.
func newLoad(t *testing.T, server *redistest.Instance, place faulttest.Place, change ...func(*faulttest.Worker)) *load {
	t.Helper()
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()), func(w *faulttest.World) { w.Groups = []string{"g", "h"} })
	l := &load{w: w}
	worker := func(worker faulttest.Worker) *faulttest.Running {
		worker.Place = place
		for _, c := range change {
			c(&worker)
		}
		return w.Start(worker)[0]
	}
	for i, group := range []string{"g", "g", "h"} {
		l.consumers = append(l.consumers, worker(faulttest.Worker{
			Role: faulttest.Consumer, Name: fmt.Sprint("consumer-", i+1), Group: group, InFlight: 5, WorkMS: 4, BackoffMS: 20,
			MaxDeliveries: loadDeliveries,
		}))
	}
	for i := range 2 {
		l.publishers = append(l.publishers, worker(faulttest.Worker{
			Role: faulttest.Publisher, Name: fmt.Sprint("publisher-", i+1), Batch: 1 + 2*i, Callers: 2, PauseMS: faulttest.Pick(100, 50),
			DelaysMS: []int{0, 0, 5, 100, 700}, Do: mixed, CancelEvery: 40,
		}))
	}
	return l
}

// harass breaks something again and again, as every does. In the short form it waits until a
// message was handled since the last time, for a second at most. Otherwise nothing would get
// through on a busy machine, where each call takes longer than d.
func (l *load) harass(d time.Duration, breaks func()) (end func() int) {
	handled, last, times := 0, time.Time{}, 0
	stop := every(d, func() {
		now := l.w.Count(faulttest.Start)
		if !faulttest.Long() && now == handled && time.Since(last) < time.Second {
			return
		}
		handled, last = now, time.Now()
		times++
		breaks()
	})
	return func() int {
		stop()
		return times
	}
}

// progress waits until so many more messages were handled.
func (l *load) progress(t *testing.T, n int) {
	t.Helper()
	l.w.Handled(l.w.Count(faulttest.Start) + n)
}

// hold publishes messages whose handlers, one in each group, run until they are released by name,
// and waits until all have begun. It returns their leases.
func (l *load) hold(t *testing.T, name string, messages int) map[lease]faulttest.Event {
	t.Helper()
	l.w.Await(l.w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: name, Messages: messages, Batch: messages, Do: []string{faulttest.Hold(name)},
	})...)
	held := map[lease]faulttest.Event{}
	l.await(t, "handlers of "+name, func(e faulttest.Event) bool {
		if e.Kind == faulttest.Start && strings.HasPrefix(e.UUID, name) {
			held[leaseOf(e)] = e
		}
		return len(held) == messages*len(l.w.Groups)
	})
	return held
}

// awaitOver waits until the contexts of these leases' handlers have ended. The handlers run on, so
// the leases have run out as far as their holders know.
func (l *load) awaitOver(t *testing.T, held map[lease]faulttest.Event) {
	t.Helper()
	l.awaitEach(t, "end of a context", held, func(of, e faulttest.Event) bool {
		return e.Kind == faulttest.Over && leaseOf(e) == leaseOf(of)
	})
}

// awaitAgain waits until the messages of these leases have other leases.
func (l *load) awaitAgain(t *testing.T, held map[lease]faulttest.Event) {
	t.Helper()
	l.awaitEach(t, "other lease", held, func(of, e faulttest.Event) bool {
		return e.Kind == faulttest.Claimed && e.Topic == of.Topic && e.Group == of.Group && e.ID == of.ID && e.Token != of.Token
	})
}

// awaitLate waits until Redis has answered settlements of these leases, and has left their messages
// alone.
func (l *load) awaitLate(t *testing.T, held map[lease]faulttest.Event) {
	t.Helper()
	l.awaitEach(t, "late settlement", held, func(of, e faulttest.Event) bool {
		return e.Kind == faulttest.Settled && leaseOf(e) == leaseOf(of) && e.Count < e.Of
	})
}

// awaitEach waits until there is an event for each lease.
func (l *load) awaitEach(t *testing.T, what string, held map[lease]faulttest.Event, is func(of, e faulttest.Event) bool) {
	t.Helper()
	left := maps.Clone(held)
	l.await(t, what, func(e faulttest.Event) bool {
		maps.DeleteFunc(left, func(_ lease, of faulttest.Event) bool { return is(of, e) })
		return len(left) == 0
	})
}

// await waits until holds returns true. It is called with each event of the history, from the start
// each time.
func (l *load) await(t *testing.T, what string, holds func(e faulttest.Event) bool) {
	t.Helper()
	faulttest.Eventually(t, func() bool { return slices.ContainsFunc(l.w.History(), holds) }, time.Minute, 5*time.Millisecond, what)
}

const (
	// soon is how late a message may come back when others do the work: the second after which
	// another takes over what is due, and one of a busy machine.
	soon = 2 * time.Second
	// byPoll is the same where a wake-up may be lost with whom it was for. A poll makes that good:
	// every 5 s, or a tenth more.
	byPoll = soon + 5500*time.Millisecond
	// afterDeaths is the same where messages kill their process. A wake-up may be lost with it,
	// and nobody polls while the others start again. That takes seconds on a busy machine.
	afterDeaths = 2 * byPoll
)

// The rules of a load, where nothing is lost: of a server that fails, and of workers or connections
// that do.
var (
	loadRules   = faulttest.Rules{MaxDeliveries: loadDeliveries, Return: soon}
	byPollRules = faulttest.Rules{MaxDeliveries: loadDeliveries, Return: byPoll}
)
