package consume

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const fleetLimit = 3 // MaxDeliveries

// fleet is some processes with one subscription each, which crash and stand still, on a fake of
// Redis.
type fleet struct {
	t           *testing.T
	random      *rand.Rand
	redis       *fakeRedis
	now         time.Time
	workers     []*worker
	poison      map[string]bool // ids of messages that end every process that handles them
	begun       int             // machines
	stallsFirst bool            // poison has its process stand still for longer than a lease, before it ends it
	beyond      bool            // handlers may run for longer than a lease
	stalls      int             // how many times a worker is yet to stand still
}

// worker is a process. Its machine is nil while it is down.
type worker struct {
	m       *Machine
	most    int // MaxInFlight
	flights []*flight
	tasks   []*task
	wake    time.Time // of the machine, or of the process while it is down
	frozen  time.Time // until then, the process stands still
}

// task is a message that a handler has.
type task struct {
	in      *InHand
	end     time.Time
	crashes bool
	lost    bool // its lease was lost
}

func newFleet(t *testing.T, random *rand.Rand, sizes ...int) *fleet {
	f := &fleet{t: t, random: random, redis: newFakeRedis(0), now: time.UnixMilli(1_700_000_000_000), poison: map[string]bool{}}
	f.redis.limit = fleetLimit
	for _, most := range sizes {
		f.workers = append(f.workers, &worker{most: most})
	}
	return f
}

// publish publishes messages, of which some are poison.
func (f *fleet) publish(n int, poison ...int) {
	f.redis.publish(n)
	for _, i := range poison {
		f.poison[f.redis.ready[i%n].id] = true
	}
}

func (f *fleet) start(w *worker) {
	f.begun++
	name := fmt.Sprint(f.begun)
	w.m = NewMachine(Limits{Main: "main" + name, Second: "second" + name, MaxInFlight: w.most,
		Lease: modelLease, MaxExtension: -1}, f.now)
}

// run has all happen in its time, until every message is acked or dead.
func (f *fleet) run(within time.Duration) {
	for end := f.now.Add(within); ; {
		left := 0
		for _, m := range f.redis.messages {
			if !m.dead {
				left++
			}
		}
		if left == 0 {
			return
		}
		if f.now.After(end) {
			f.t.Fatalf("%d messages are left after %v", left, within)
		}
		next := end.Add(time.Second)
		if at, ok := f.redis.next(); ok {
			next = at
		}
		for _, w := range f.workers {
			next = earlier(next, w.next())
		}
		if next.After(f.now) {
			f.now = next
		}
		f.redis.waits, f.redis.wakes = true, 0
		f.redis.step(f.now)
		for _, w := range f.workers {
			if f.now.Before(w.frozen) {
				continue
			}
			f.step(w)
		}
	}
}

// next is when the worker has something to do.
func (w *worker) next() time.Time {
	at := w.wake
	if w.m == nil {
		return at
	}
	if watch := w.m.Watch(); !watch.IsZero() {
		at = earlier(at, watch)
	}
	for _, x := range w.flights {
		at = earlier(at, x.a.Came)
	}
	for _, k := range w.tasks {
		at = earlier(at, k.end)
	}
	if at.Before(w.frozen) {
		return w.frozen
	}
	return at
}

// step has a worker do all that is due.
func (f *fleet) step(w *worker) {
	if w.m == nil {
		if f.now.Before(w.wake) {
			return
		}
		f.start(w)
	}
	f.effects(w, w.m.Tick(f.now))
	if f.redis.wakes > 0 {
		f.effects(w, w.m.Woken())
	}
	for _, x := range slices.Clone(w.flights) {
		if !f.now.Before(x.a.Came) {
			w.flights = slices.DeleteFunc(w.flights, func(other *flight) bool { return other == x })
			f.effects(w, w.m.Answered(f.now, x.Exchange, &x.a))
			if x.beside {
				f.send(w, w.m.PlanBeside(f.now))
			}
		}
	}
	for _, k := range slices.Clone(w.tasks) {
		if f.now.Before(k.end) {
			continue
		}
		if k.crashes {
			*w = worker{most: w.most, wake: f.now.Add(time.Second)}
			return
		}
		w.tasks = slices.DeleteFunc(w.tasks, func(other *task) bool { return other == k })
		if k.lost {
			w.m.Outlived(k.in)
		} else {
			f.effects(w, w.m.Acked(f.now, k.in))
		}
	}
	f.take(w)
	if !slices.ContainsFunc(w.flights, func(x *flight) bool { return !x.beside }) {
		x, wake, e := w.m.Plan(f.now, modelPoll, Contact{Address: "mailbox|" + w.m.limits.Main})
		f.effects(w, e)
		w.wake = wake
		f.send(w, x)
	}
}

// take has handlers begin with all that the machine gives them.
func (f *fleet) take(w *worker) {
	for {
		in := &InHand{}
		taken, e := w.m.Take(f.now, in)
		f.effects(w, e)
		if !taken {
			return
		}
		f.effects(w, w.m.Handed(f.now, in))
		most := int64(modelLease) * 9 / 10
		if f.beyond {
			most *= 3
		}
		took := time.Duration(f.random.Int64N(most))
		if in.Company(w.most) == 1 && !f.beyond && !f.stallsFirst {
			require.Empty(f.t, w.tasks, "%s is handled beside others", in.ID)
		}
		k := &task{in: in, end: f.now.Add(took), crashes: f.poison[in.ID]}
		w.tasks = append(w.tasks, k)
		if k.crashes && f.stallsFirst {
			w.frozen = f.now.Add(modelLease + time.Duration(f.random.Int64N(int64(modelLease))))
			k.end = w.frozen.Add(50 * time.Millisecond)
		}
		if f.stalls > 0 && len(w.tasks) > w.most/2 {
			f.stalls--
			w.frozen = f.now.Add(2 * modelLease)
		}
	}
}

// send has the server run an exchange. Its answer comes after a while.
func (f *fleet) send(w *worker, x *Exchange) {
	if x == nil {
		return
	}
	fl := &flight{Exchange: x}
	h := model{redis: f.redis, now: f.now}
	for _, call := range h.calls(fl) {
		call()
	}
	fl.a.Sent, fl.a.Came = f.now, f.now.Add(pick(f.random, 100*time.Microsecond, time.Millisecond))
	w.flights = append(w.flights, fl)
	w.wake = fl.a.Came
}

func (f *fleet) effects(w *worker, e Effects) {
	for _, ended := range e.Ended {
		for _, k := range w.tasks {
			if k.in == ended.InHand {
				k.lost = true
			}
		}
	}
	f.send(w, e.Beside)
}

// bound is how many leases of a poison message may expire until it is dead.
func (f *fleet) bound() int {
	most := 1
	for _, w := range f.workers {
		most = max(most, w.most)
	}
	return fleetLimit + 2 + bits.Len(uint(most)) - 1
}

// histories runs a test for some random histories, for more with MODEL_SEQUENCES. A failure names
// the seed.
func histories(t *testing.T, test func(t *testing.T, random *rand.Rand)) {
	wanted, _ := strconv.Atoi(os.Getenv("MODEL_SEQUENCES"))
	for seed := range uint64(max(1, wanted/100)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			test(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// A poison message is dead after a few crashes, whatever its neighbours and other workers do. These
// are all handled, and no delivery of theirs is counted.
func TestPoisonDiesAndItsNeighboursDoNot(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][]int{{1}, {60}, {256}, {1, 1, 1}, {60, 60, 60}, {256, 256, 256}, {1, 60, 256}, {2, 5}} {
		for _, poisons := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("%d in the hands of %v", poisons, sizes), func(t *testing.T) {
				t.Parallel()
				histories(t, func(t *testing.T, random *rand.Rand) {
					f := newFleet(t, random, sizes...)
					f.stallsFirst = pick(random, false, true)
					n := pick(random, 1, 60, 256) + poisons
					first, apart := random.IntN(n), pick(random, 1, 1, 7) // 1: adjacent
					var at []int
					for i := range poisons {
						at = append(at, first+i*apart)
					}
					f.publish(n, at...)
					f.run(24 * time.Hour)
					for id, m := range f.redis.messages { // the dead are left
						if f.poison[id] {
							require.LessOrEqual(t, m.expired, f.bound(), "expiries of %s", id)
						}
					}
					if f.stallsFirst { // the handlers of poison run for longer than a lease
						return
					}
					for id := range f.redis.messages {
						require.True(t, f.poison[id], "neighbour %s is dead", id)
					}
					for id, n := range f.redis.counted {
						require.True(t, f.poison[id], "%d deliveries of the neighbour %s were counted", n, id)
					}
				})
			})
		}
	}
}

// Handlers that run for longer than a lease hold suspects up for a lease, and not for ever.
func TestPoisonDiesBesideHandlersThatRunForLong(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, random *rand.Rand) {
		f := newFleet(t, random, pick(random, 1, 5, 60), 60)
		f.beyond = true
		f.publish(61, random.IntN(61))
		f.run(24 * time.Hour)
		for id, m := range f.redis.messages {
			if f.poison[id] {
				require.LessOrEqual(t, m.expired, f.bound())
			}
		}
	})
}

// A process that stands still loses its leases and makes nobody suspect.
func TestAProcessThatStoodStillTakesItsExpiriesBack(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 8, 60} {
		histories(t, func(t *testing.T, random *rand.Rand) {
			f := newFleet(t, random, most)
			f.publish(60)
			f.stalls = 3
			f.run(time.Hour)
			require.Zero(t, f.stalls)
			require.Empty(t, f.redis.messages, "dead letters")
			require.Empty(t, f.redis.counted)
		})
	}
}
