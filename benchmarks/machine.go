package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pausesTrial has every CPU do nothing but read the clock, and says how long one of them did not even do that.
func pausesTrial(length time.Duration) trial {
	cpus := runtime.GOMAXPROCS(0)
	return trial{"this machine", fmt.Sprintf("%d %s that read the clock, %v", cpus, plural(cpus, "loop"), length), func(*env) (figures, error) {
		runtime.GC()
		before, err := stolenTime()
		if err != nil {
			return nil, err
		}
		longest := make([]time.Duration, cpus)
		var loops sync.WaitGroup
		for i := range longest {
			loops.Go(func() { longest[i] = readClock(length) })
		}
		loops.Wait()
		after, err := stolenTime()
		return figures{
			longestPause: float64(slices.Max(longest)) / float64(time.Millisecond),
			stolen:       float64(after-before) / float64(time.Millisecond),
		}, err
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

// stolenTime is how long CPUs that had something to do were not run by the machine that runs this one, all of them together,
// as Linux counts it, in steps of 10 ms. Elsewhere it is 0.
func stolenTime() (time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ, the same on all platforms of Go
	stat, err := os.ReadFile("/proc/stat")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	// cpu user nice system idle iowait irq softirq steal ...
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat begins with %q, without the time that was stolen", line)
	}
	ticks, err := strconv.ParseInt(fields[8], 10, 64)
	return time.Duration(ticks) * tick, err
}
