package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Faults come one after the other. No message is lost or stuck. SOAK says for how long; without it
// there is one short round. SOAK_SEED has a run choose the faults that another chose.
func TestSoak(t *testing.T) {
	length, round := time.Duration(0), 10*time.Second
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err)
		round = time.Minute
	} else {
		t.Parallel()
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SOAK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	faulttest.Case(t, "random faults, one after the other, lose nothing and leave nothing stuck")
	s := &soak{random: rand.New(rand.NewPCG(seed, 0)), count: map[string]int{}}
	began := time.Now()
	for first := true; first || time.Since(began) < length; first = false {
		s.rounds++
		t.Run(fmt.Sprint("round ", s.rounds), func(t *testing.T) { s.round(t, round) })
		fmt.Printf("soak: %v: %d rounds: %v\n", time.Since(began).Round(time.Second), s.rounds, s.total)
	}
	verdict := "PASSED"
	if t.Failed() {
		verdict = fmt.Sprintf("FAILED (SOAK_SEED=%d)", seed)
	}
	said := fmt.Sprintf("%v, %d rounds, %v", time.Since(began).Round(time.Second), s.rounds, s.total)
	faulttest.Report(t, said)
	fmt.Printf("soak: verdict: %s: %s\n", verdict, said)
	for _, name := range slices.Sorted(maps.Keys(s.count)) {
		fmt.Printf("soak: %5d times: %s\n", s.count[name], name)
	}
}

type soak struct {
	random           *rand.Rand
	rounds, replaced int

	count map[string]int // faults, by name
	total faulttest.Figures
}

// trouble is what a fault can be done to.
type trouble struct {
	*soak
	*load
	t      *testing.T
	server *redistest.Instance
	proxy  *faulttest.Proxy
}

// round is a server, a load on it, and faults for a while; then all of it is judged.
func (s *soak) round(t *testing.T, length time.Duration) {
	server := redistest.Start(t, appendOnly("always")...)
	proxy := faulttest.NewProxy(t, server.Addr())
	f := &trouble{s, newLoad(t, server, proxy.Place()), t, server, proxy}
	names := slices.Sorted(maps.Keys(troubles))
	for began := time.Now(); time.Since(began) < length; {
		name := names[s.random.IntN(len(names))]
		s.count[name]++
		troubles[name](f)
		f.progress(t, 10+s.random.IntN(40))
	}
	figures := f.w.Verify(byPollRules)
	s.total = s.total.Plus(figures)
}

// between is a random time.
func (f *trouble) between(least, most time.Duration) time.Duration {
	return least + time.Duration(f.random.Int64N(int64(most-least)))
}

// worker is one of the load's, the index of which is returned too.
func (f *trouble) worker(all []*faulttest.Running) (*faulttest.Running, int) {
	i := f.random.IntN(len(all))
	return all[i], i
}

var troubles = map[string]func(*trouble){
	"the server is killed": func(f *trouble) {
		f.server.Kill()
		time.Sleep(f.between(0, 2*time.Second))
		f.server.Restart()
	},
	"the server freezes": func(f *trouble) {
		f.server.Pause()
		time.Sleep(f.between(0, 3*time.Second))
		f.server.Resume()
	},
	"all connections are killed": func(f *trouble) {
		for range 1 + f.random.IntN(20) {
			_ = f.w.Client.ClientKillByFilter(f.t.Context(), "TYPE", "normal").Err() // itself too
			_ = f.w.Client.ClientKillByFilter(f.t.Context(), "TYPE", "pubsub").Err()
			time.Sleep(f.between(0, 50*time.Millisecond))
		}
	},
	"the scripts are gone": func(f *trouble) {
		for range 1 + f.random.IntN(20) {
			_ = f.w.Client.ScriptFlush(f.t.Context()).Err()
			time.Sleep(f.between(0, 50*time.Millisecond))
		}
	},
	"the network is slow": func(f *trouble) {
		f.proxy.Delay(f.between(time.Millisecond, time.Second/2))
		time.Sleep(f.between(0, 3*time.Second))
		f.proxy.Delay(0)
	},
	"the network is cut": func(f *trouble) {
		f.proxy.Refuse(true)
		time.Sleep(f.between(0, 2*time.Second))
		f.proxy.Refuse(false)
	},
	"the network is half open": func(f *trouble) {
		f.proxy.Stall()
		time.Sleep(f.between(0, 4*time.Second))
		f.proxy.Resume()
	},
	"replies are lost": func(f *trouble) {
		names := scriptsOfWorkers
		f.proxy.Swallow(1+f.random.IntN(5), faulttest.Script(names[f.random.IntN(len(names))]))
		time.Sleep(f.between(0, time.Second))
		f.proxy.Swallow(0, nil)
	},
	"a consumer is killed": func(f *trouble) {
		r, i := f.worker(f.consumers)
		f.consumers[i] = f.replace(r, r.Kill)
	},
	"a publisher is killed": func(f *trouble) {
		r, i := f.worker(f.publishers)
		f.publishers[i] = f.replace(r, r.Kill)
	},
	"a consumer ends properly": func(f *trouble) {
		r, i := f.worker(f.consumers)
		f.consumers[i] = f.replace(r, r.Stop)
	},
	"a consumer freezes": func(f *trouble) {
		r, _ := f.worker(f.consumers)
		thaw := r.Freeze()
		time.Sleep(f.between(0, 3*time.Second)) // a lease is a second
		thaw()
	},
}

// replace ends a worker and starts another one in its place.
func (f *trouble) replace(r *faulttest.Running, end func()) *faulttest.Running {
	end()
	worker := r.Worker
	f.replaced++
	worker.Name = fmt.Sprint(worker.Role, "-in-place-", f.replaced)
	return f.w.Start(worker)[0]
}
