package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

func lateness(e *env) scenario {
	n := e.size(10_000)
	mine := latenessTrial(ours, options{subscribers: 1, inFlight: 256}, n)
	return scenario{
		name:  "lateness",
		title: "Lateness under load",
		about: "Messages are due at random whole milliseconds, 1,000 in a second. They are published before the first is due. " +
			"asynq keeps whole seconds; watermill-redisstream has no delays. The last row is a timer of Go for each, and one round trip.",
		trials: []trial{
			mine,
			latenessTrial(asynqSystem, options{subscribers: 1, inFlight: 32}, n),
			timerTrial(n, time.Duration(n)*time.Millisecond),
		},
		targets: func(r results) []target {
			return []target{
				atMost(1, "ms late at 1,000 due a second, p50", r.get(mine, lateP50)).inREADME("ms late at 1,000 due a second, median"),
				atMost(5, "the same, p99", r.get(mine, lateP99)),
				atMost(0, "messages that come early", r.get(mine, earlyCount)).inREADME("messages that come early"),
			}
		},
	}
}

func latenessTrial(s system, o options, n int) trial {
	return trial{s.name, fmt.Sprintf("%s messages; %v", count(n), o), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		t := newTally(n)
		if err := q.consume(t.arrive); err != nil {
			return nil, err
		}
		l := load{messages: n, callers: 32, perCall: 1, payload: smallPayload}
		l.dues = spread(n, time.Duration(n)*time.Millisecond)
		l.due = func(i int) time.Time { return l.dues[i] }
		if err := errors.Join(q.publishAll(l), t.wait()); err != nil {
			return nil, err
		}
		found, err := t.lateness(s, l.dues)
		return found, errors.Join(err, q.finish(t))
	}}
}

// timerTrial is for comparison: it waits for each of n due times, spread over a while, and asks the
// server for a PONG then.
func timerTrial(n int, over time.Duration) trial {
	return trial{rawName, fmt.Sprintf("%s timers, each with a PING", count(n)), func(e *env) (figures, error) {
		client := e.newClient()
		t := newTally(n)
		dues := spread(n, over)
		slices.SortFunc(dues, time.Time.Compare)
		for i, due := range dues {
			time.Sleep(time.Until(due))
			if err := client.Ping(ctx).Err(); err != nil {
				return nil, err
			}
			t.arrived[i].Store(time.Now().UnixNano())
		}
		found, err := t.lateness(raw, dues)
		return found, errors.Join(err, client.Close())
	}}
}

func idleLateness(e *env) scenario {
	const topicCount = 64
	n := e.size(400)
	mine := trial{oursName, fmt.Sprintf("%s messages, %d topics", count(n), topicCount), func(e *env) (figures, error) {
		t, err := openTopics(e, topicCount)
		if err != nil {
			return nil, err
		}
		tally := newTally(n)
		arrived := make(chan struct{}, n)
		err = t.consume(func(payload []byte) {
			tally.arrive(payload)
			arrived <- struct{}{}
		})
		if err != nil {
			return nil, err
		}
		l := load{messages: n, payload: smallPayload, dues: make([]time.Time, n)}
		l.due = func(int) time.Time {
			return wholeMillis(time.Now().Add(20*time.Millisecond + rand.N(50*time.Millisecond)))
		}
		for i := range n {
			if err := t.publish(l, i, rand.N(topicCount)); err != nil {
				return nil, err
			}
			select {
			case <-arrived:
			case <-time.After(patience):
				return nil, fmt.Errorf("message %d is lost", i)
			}
			time.Sleep(rand.N(20 * time.Millisecond))
		}
		found, err := tally.lateness(ours, l.dues)
		return found, errors.Join(err, tally.check(), t.close())
	}}
	return scenario{
		name:  "idle-lateness",
		title: "Lateness on an idle system",
		about: "One message at a time, due after 20 to 70 ms, in one of the topics of one Subscriber. The next is published " +
			"when it has arrived, within 20 ms. The last row is a timer of Go for each of as many, and one round trip.",
		trials: []trial{mine, timerTrial(n, time.Duration(n)*50*time.Millisecond)},
		targets: func(r results) []target {
			return []target{atMost(3, "ms late on an idle system with 64 topics, p99", r.get(mine, lateP99))}
		},
	}
}
