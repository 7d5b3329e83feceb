package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/internal/redisserver"
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
		stream  = consumeTrial(redisStream, options{subscribers: 32}, e.size(20_000))
	)
	return scenario{
		name:  "instant",
		title: "Many messages due in the same millisecond",
		about: "All messages are published, 1 caller, 100 a call, to be due in the same millisecond. The rate counts from then, and " +
			"all else is of consuming, too. Full rate may mean that of fewer messages, or of messages that were due before, which " +
			"nobody has to promote, or what is wanted of consuming at all, so it is held to each: the two rows after go-redis alone. " +
			"go-redis alone takes what is due from the sorted set, where it looks every millisecond. Slow are scripts in the server's " +
			"SLOWLOG, from the first publish on, which counts time in which the server was not run, too. Stolen is what the machine " +
			"that runs this one withheld from all CPUs together, also from the first publish on. Of slow, slowest and stolen, and " +
			"of how late the first message came, each has its own worst round.",
		trials: []trial{many, fewer, inOrder, alone, ready, stream},
		targets: func(r results) []target {
			what := fmt.Sprintf("%s due in the same ms", count(n))
			times := func(t trial) float64 { return r.get(many, consumeRate) / r.get(t, consumeRate) }
			return []target{
				atMost(50, what+": ms until the first arrives", max(r.get(many, firstLate), r.get(inOrder, firstLate))),
				atMost(0, what+": scripts over 10 ms", r.get(many, slowScripts)+r.get(inOrder, slowScripts)),
				atLeast(0.9, what+": rate, times that of a tenth as many", times(fewer)),
				atLeast(0.8, what+": rate, times that of messages due before", times(ready)).inREADME(what + ": rate, times that of messages due before"),
				// As much as is wanted of consuming what is due already.
				atLeast(6, what+": rate, times that of consuming with watermill-redisstream", times(stream)),
				atLeast(1, what+": rate, times that of go-redis alone", times(alone)),
				atLeast(0.8, what+", in order: rate, times that with 256 in flight", r.get(inOrder, consumeRate)/r.get(many, consumeRate)),
			}
		},
	}
}

// errNotInTime says that messages became due before all were published.
var errNotInTime = errors.New("publishing took too long")

// instantTrial allows twice the time for publishing where it was not enough.
func instantTrial(s system, o options, n int) trial {
	return trial{s.name, fmt.Sprintf("%s messages due at once; %v", count(n), o), func(e *env) (figures, error) {
		// Soon enough that a kernel that takes from programs what they have not used for half a
		// minute does not.
		lead := 3*time.Second + time.Duration(n)*15*time.Microsecond
		for {
			found, err := instantRound(e, s, o, n, lead)
			if !errors.Is(err, errNotInTime) {
				return found, err
			}
			if err := e.server.Admin.FlushAll(ctx).Err(); err != nil {
				return nil, err
			}
			lead *= 2
		}
	}}
}

func instantRound(e *env, s system, o options, n int, lead time.Duration) (figures, error) {
	q, err := s.open(e, o)
	if err != nil {
		return nil, err
	}
	t := newTally(n)
	since, err := watchStolen()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(e.server.watchSlow(), q.consume(t.arrive)); err != nil {
		return nil, err
	}
	due := wholeMillis(time.Now().Add(lead))
	l := load{messages: n, callers: 1, perCall: 100, payload: smallPayload, dues: make([]time.Time, n)}
	l.due = func(int) time.Time { return due }
	if err := q.publishAll(l); err != nil {
		return nil, err
	}
	const warmup = 100 * time.Millisecond // for what measure does before the work
	left := time.Until(due) - warmup
	if left < 0 {
		return nil, errors.Join(errNotInTime, q.close())
	}
	time.Sleep(left)
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
	if err := since.add(found); err != nil {
		return nil, err
	}
	found[consumeRate] = float64(n) / late[lateMax] * 1000
	found[firstLate] = late[lateMin]
	if o.inFlight == 1 {
		err = t.checkOrder()
	}
	return found, errors.Join(err, q.finish(t))
}

// watchSlow begins to log what takes the server more than a millisecond.
func (s *server) watchSlow() error {
	return errors.Join(
		s.Admin.ConfigSet(ctx, "slowlog-log-slower-than", "1000").Err(),
		s.Admin.ConfigSet(ctx, "slowlog-max-len", "100000").Err(),
		s.Admin.Do(ctx, "slowlog", "reset").Err(),
	)
}

// slow ends that, and is what was logged. What took more than 10 ms is told in full.
func (s *server) slow() (figures, error) {
	log, err := s.Admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return nil, err
	}
	// Redis's defaults, and so those of the server that is started.
	err = errors.Join(
		s.Admin.ConfigSet(ctx, "slowlog-log-slower-than", "10000").Err(),
		s.Admin.ConfigSet(ctx, "slowlog-max-len", "128").Err(),
	)
	found := figures{slowScripts: 0, slowest: 0}
	for _, entry := range log {
		if redisserver.OfAdmin(entry.Args[0]) {
			continue
		}
		found[slowest] = max(found[slowest], float64(entry.Duration)/float64(time.Millisecond))
		if entry.Duration > 10*time.Millisecond {
			found[slowScripts]++
			fmt.Fprintf(os.Stderr, "slow: %v at %v: %.300q\n", entry.Duration, entry.Time.Format(time.TimeOnly), entry.Args)
		}
	}
	return found, err
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
