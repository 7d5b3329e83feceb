package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// machine is about what this machine gives to any program, on which all other figures depend.
func machine(e *env) scenario {
	return scenario{
		name:  "machine",
		title: "This machine",
		about: "What figures depend on, and what changes with the hour where hardware is shared. The time of a single PING is for the most " +
			"part that of two CPUs waking up, the server's and the client's. Calls that follow one another wait for that; where many are " +
			"under way, both stay awake. Of a million messages, few are in the processor's caches when they are needed: the second row reads " +
			"memory like that, each place told by the read before. Last, for how long a program is not run that only reads the clock, one " +
			"such loop for each CPU and nothing else.",
		trials: []trial{
			pingTrial(e.size(20_000)),
			memoryReadTrial(e.size(5_000_000)),
			pausesTrial(time.Duration(e.size(15_000)) * time.Millisecond),
		},
		targets: func(results) []target { return nil },
	}
}

const machineName = "this machine"

// pingTrial has the server answer one PING after the other.
func pingTrial(n int) trial {
	return trial{machineName, fmt.Sprintf("%s PINGs, one after the other", count(n)), func(e *env) (figures, error) {
		took := make([]time.Duration, n)
		for i := range took {
			start := time.Now()
			if err := e.server.Admin.Ping(ctx).Err(); err != nil {
				return nil, err
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		return figures{pingTime: float64(took[n/2]) / float64(time.Microsecond)}, nil
	}}
}

// memoryReadTrial reads from 256 MB, in an order that nothing foresees.
func memoryReadTrial(n int) trial {
	const cells = 32 << 20
	return trial{machineName, fmt.Sprintf("%s reads from 256 MB", count(n)), func(*env) (figures, error) {
		next := make([]uint64, cells)
		for i := range next {
			next[i] = rand.Uint64N(cells)
		}
		var at uint64
		start := time.Now()
		for i := range n {
			at = (next[at] + uint64(i)) % cells // so that it does not go in circles
		}
		took := time.Since(start)
		runtime.KeepAlive(at)
		return figures{memoryRead: float64(took) / float64(n)}, nil
	}}
}

// pausesTrial has every CPU do nothing but read the clock, and says how long one of them did not
// even do that.
func pausesTrial(length time.Duration) trial {
	cpus := runtime.GOMAXPROCS(0)
	return trial{machineName, fmt.Sprintf("%d %s that read the clock, %v", cpus, plural(cpus, "loop"), length), func(*env) (figures, error) {
		debug.FreeOSMemory() // now, not in the background meanwhile
		since, err := watchStolen()
		if err != nil {
			return nil, err
		}
		longest := make([]time.Duration, cpus)
		var loops sync.WaitGroup
		for i := range longest {
			loops.Go(func() { longest[i] = readClock(length) })
		}
		loops.Wait()
		found := figures{longestPause: float64(slices.Max(longest)) / float64(time.Millisecond)}
		return found, since.add(found)
	}}
}

// readClock is the longest time between two readings of the clock.
func readClock(length time.Duration) (longest time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	for last := start; last.Sub(start) < length; {
		now := time.Now()
		longest = max(longest, now.Sub(last))
		last = now
	}
	return longest
}

// stolenSince tells how much time was stolen since it was made.
type stolenSince struct {
	ticks int64
	known bool
}

func watchStolen() (s stolenSince, err error) {
	s.ticks, s.known, err = stolenTicks()
	return s, err
}

// add puts what was found into its column, or nothing where the system does not tell.
func (s stolenSince) add(found figures) error {
	const tick = 10 // ms; USER_HZ is 100 on all platforms of Go
	ticks, known, err := stolenTicks()
	if s.known && known {
		found[stolen] = float64(ticks-s.ticks) * tick
	}
	return err
}

// stolenTicks is how long CPUs that had something to do were not run by the machine that runs this
// one, all of them together, as Linux counts it. Other systems do not tell.
func stolenTicks() (ticks int64, known bool, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	// cpu user nice system idle iowait irq softirq steal ...
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, false, nil
	}
	ticks, err = strconv.ParseInt(fields[8], 10, 64)
	return ticks, err == nil, err
}
