package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// sameInstant is about many messages that are due at once.
func sameInstant(e *env) scenario {
	n := e.size(1_000_000)
	var (
		many    = instantTrial(ours, options{subscribers: 1, inFlight: 256}, n)
		fewer   = instantTrial(ours, options{subscribers: 1, inFlight: 256}, e.size(100_000))
		inOrder = instantTrial(ours, options{subscribers: 1, inFlight: 1}, n)
		alone   = instantTrial(raw, options{subscribers: 1, inFlight: 256}, n)
		ready   = consumeTrial(ours, options{subscribers: 1, inFlight: 256}, n)
		idling  = pausesTrial(time.Duration(e.size(15_000)) * time.Millisecond)
	)
	return scenario{
		name:  "instant",
		title: "Many messages due in the same millisecond",
		about: "All messages are published, 1 caller, 100 a call, to be due in the same millisecond. The rate counts from then, and " +
			"all else is of consuming, too. Of how late the first message came, the worst round counts. go-redis alone takes what is due " +
			"from the sorted set, where it looks every millisecond. The last row but one is consuming messages that are due already, which " +
			"nobody has to promote. Slow are scripts in the server's SLOWLOG, from the first publish on; it counts time in which the server " +
			"was not run, too. The last row says how long this machine does not run a program that does nothing but read the clock; so " +
			"of scripts over 10 ms the median round counts, and the slowest is that of all rounds.",
		trials: []trial{many, fewer, inOrder, alone, ready, idling},
		targets: func(r results) []target {
			what := fmt.Sprintf("%s due in the same ms", count(n))
			return []target{
				atMost(50, what+": ms until the first arrives", max(r.get(many, firstLate), r.get(inOrder, firstLate))),
				atMost(0, what+": scripts over 10 ms", r.get(many, slowScripts)+r.get(inOrder, slowScripts)),
				// As full a rate as that of a number that is not out of the ordinary.
				atLeast(0.9, what+": rate, times that of a tenth as many", r.get(many, consumeRate)/r.get(fewer, consumeRate)),
				atLeast(1, what+": rate, times that of go-redis alone", r.get(many, consumeRate)/r.get(alone, consumeRate)),
			}
		},
	}
}

func instantTrial(s system, o options, n int) trial {
	return trial{s.name, fmt.Sprintf("%s messages due at once; %v", count(n), o), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		t := newTally(n)
		if err := errors.Join(e.server.watchSlow(), q.consume(t.arrive)); err != nil {
			return nil, err
		}
		// Soon enough that a kernel that takes from programs what they have not used for half a minute does not.
		due := wholeMillis(time.Now().Add(3*time.Second + time.Duration(n)*15*time.Microsecond))
		l := load{messages: n, callers: 1, perCall: 100, payload: smallPayload, dues: make([]time.Time, n)}
		l.due = func(int) time.Time { return due }
		if err := q.publishAll(l); err != nil {
			return nil, err
		}
		if left := time.Until(due); left < 0 {
			return nil, fmt.Errorf("publishing took %v too long", -left)
		}
		u, err := e.measure(t.wait)
		if err != nil {
			return nil, err
		}
		late, err := t.lateness(s, l.dues)
		if err != nil {
			return nil, err
		}
		slow, err := e.server.slow()
		if err != nil {
			return nil, err
		}
		found := u.perMessage(consumeRate, n)
		maps.Copy(found, slow)
		found[consumeRate] = float64(n) / late[lateMax] * 1000
		found[firstLate] = late[lateMin]
		if o.inFlight == 1 {
			err = t.checkOrder()
		}
		return found, errors.Join(err, q.finish(t))
	}}
}

// watchSlow begins to log what takes the server more than a millisecond.
func (s *server) watchSlow() error {
	return errors.Join(
		s.admin.ConfigSet(ctx, "slowlog-log-slower-than", "1000").Err(),
		s.admin.ConfigSet(ctx, "slowlog-max-len", "100000").Err(),
		s.admin.Do(ctx, "SLOWLOG", "RESET").Err(),
	)
}

// slow ends that, and is what was logged.
func (s *server) slow() (figures, error) {
	log, err := s.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return nil, err
	}
	if err := s.admin.ConfigSet(ctx, "slowlog-log-slower-than", "10000").Err(); err != nil { // Redis's default
		return nil, err
	}
	found := figures{slowScripts: 0, slowest: 0}
	for _, entry := range log {
		if ofAdmin(entry.Args[0]) {
			continue
		}
		found[slowest] = max(found[slowest], float64(entry.Duration)/float64(time.Millisecond))
		if entry.Duration > 10*time.Millisecond {
			found[slowScripts]++
			fmt.Fprintf(os.Stderr, "slow: %v at %v: %.300s\n", entry.Duration, entry.Time.Format(time.TimeOnly), strings.Join(entry.Args, " "))
		}
	}
	return found, nil
}

// pausesTrial has every processor do nothing but read the clock for so long, and says how long they did not even do that.
func pausesTrial(length time.Duration) trial {
	cpus := runtime.NumCPU()
	return trial{"nothing", fmt.Sprintf("%d %s that read the clock, %v", cpus, plural(cpus, "loop"), length), func(*env) (figures, error) {
		runtime.GC()
		pauses := make([]figures, cpus)
		var loops sync.WaitGroup
		for i := range pauses {
			loops.Go(func() { pauses[i] = readClock(length) })
		}
		loops.Wait()
		found := pauses[0]
		for _, p := range pauses[1:] {
			found[slowScripts] += p[slowScripts]
			found[slowest] = max(found[slowest], p[slowest])
		}
		return found, nil
	}}
}

// readClock counts the pauses in which it was not run as if they were scripts.
func readClock(length time.Duration) figures {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	found := figures{slowScripts: 0, slowest: 0}
	start := time.Now()
	for last := start; last.Sub(start) < length; {
		now := time.Now()
		pause := now.Sub(last)
		found[slowest] = max(found[slowest], float64(pause)/float64(time.Millisecond))
		if pause > 10*time.Millisecond {
			found[slowScripts]++
		}
		last = now
	}
	return found
}

// backlog is about messages that wait in the topic meanwhile.
func backlog(e *env) scenario {
	n := e.size(1_000_000)
	none, waiting := backlogTrial(e.size(300_000), 0), backlogTrial(e.size(300_000), n)
	return scenario{
		name:  "backlog",
		title: "With many messages waiting",
		about: "Messages that are due at once are published, 32 callers, 1 a call, and then consumed, 1 subscriber, " +
			"256 in flight: in an empty topic, and in one with messages that are due in an hour. As many were published and " +
			"consumed there before, since the server's tables grow when they have 2^20 entries. Those of an empty topic grow anew.",
		trials: []trial{none, waiting},
		targets: func(r results) []target {
			times := func(c column) float64 { return r.get(waiting, c) / r.get(none, c) }
			return []target{
				atLeast(0.8, fmt.Sprintf("publish with %s waiting: times that with none", count(n)), times(publishRate)),
				atLeast(0.8, "consume and ack: the same", times(consumeRate)),
			}
		},
	}
}

// backlogTrial publishes and consumes n messages in a topic where others wait.
func backlogTrial(n, waiting int) trial {
	return trial{oursName, fmt.Sprintf("%s messages, %s waiting", count(n), count(waiting)), func(e *env) (figures, error) {
		o := options{subscribers: 1, inFlight: 256, topic: e.topic(), pending: waiting}
		if err := fill(e, o, n); err != nil {
			return nil, err
		}
		q, err := openOurs(e, o)
		if err != nil {
			return nil, err
		}
		l := load{messages: n, callers: 32, perCall: 1, payload: smallPayload}
		published, err := e.measure(func() error { return q.publishAll(l) })
		if err != nil {
			return nil, err
		}
		t := newTally(n)
		consumed, err := e.measure(func() error { return errors.Join(q.consume(t.arrive), t.wait()) })
		if err != nil {
			return nil, err
		}
		return figures{
			publishRate: float64(n) / published.wall.Seconds(),
			consumeRate: float64(n) / consumed.wall.Seconds(),
		}, q.finish(t)
	}}
}

// fill publishes what is to wait in a topic, and has n messages pass through it.
func fill(e *env, o options, n int) error {
	q, err := openOurs(e, o)
	if err != nil {
		return err
	}
	l := load{callers: 4, perCall: 1000, payload: smallPayload}
	if err := errors.Join(q.publishAll(l.of(o.pending).delayed()), q.publishAll(l.of(n))); err != nil {
		return err
	}
	t := newTally(n)
	return errors.Join(q.consume(t.arrive), t.wait(), q.finish(t))
}
