package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"
)

func consuming(e *env) scenario {
	var (
		mine   = consumeTrial(ours, options{subscribers: 1, inFlight: 256}, e.size(200_000))
		stream = consumeTrial(redisStream, options{subscribers: 32}, e.size(20_000))
		asynq  = consumeTrial(asynqSystem, options{subscribers: 1, inFlight: 32}, e.size(10_000))
	)
	return scenario{
		name:  "consume",
		title: "Consuming",
		about: "Messages that are due are there, 100 bytes each; then the subscribers start, and ack each at once.",
		trials: []trial{
			mine, stream, asynq,
			consumeTrial(raw, options{subscribers: 1, inFlight: 256}, e.size(200_000)),
		},
		targets: func(r results) []target {
			rate := r.get(mine, consumeRate)
			return []target{
				atLeast(6, "consume and ack, 1 subscriber, 256 in flight: times watermill-redisstream with 32", rate/r.get(stream, consumeRate)).inREADME(
					"consume and ack, 256 in flight: times watermill-redisstream"),
				atLeast(15, "the same: times asynq with 32 workers", rate/r.get(asynq, consumeRate)),
			}
		},
	}
}

func ordered(e *env) scenario {
	var (
		mine   = consumeTrial(ours, options{subscribers: 1, inFlight: 1}, e.size(100_000))
		stream = consumeTrial(redisStream, options{subscribers: 1, inFlight: 1}, e.size(5_000))
	)
	return scenario{
		name:   "ordered",
		title:  "Consuming in order",
		about:  "As before, with one subscriber that has one message at a time, so that they come in order.",
		trials: []trial{mine, stream},
		targets: func(r results) []target {
			return []target{atLeast(10, "consume and ack in order: times watermill-redisstream",
				r.get(mine, consumeRate)/r.get(stream, consumeRate)).inREADME(
				"consume and ack in order: times watermill-redisstream")}
		},
	}
}

func (o options) String() string {
	text := fmt.Sprintf("%d %s", o.subscribers, plural(o.subscribers, "subscriber"))
	if o.inFlight > 0 {
		text += fmt.Sprintf(", %d in flight", o.inFlight)
	}
	return text
}

func consumeTrial(s system, o options, n int) trial {
	return trial{s.name, fmt.Sprintf("%v, %s messages", o, count(n)), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		// One caller, so that the order of the messages is known.
		if err := q.publishAll(load{messages: n, callers: 1, perCall: 100, payload: smallPayload}); err != nil {
			return nil, err
		}
		t := newTally(n)
		u, err := e.measure(func() error { return errors.Join(q.consume(t.arrive), t.wait()) })
		if err != nil {
			return nil, err
		}
		if err := q.finish(t); err != nil {
			return nil, err
		}
		if o.subscribers == 1 && o.inFlight == 1 {
			err = t.checkOrder()
		}
		return u.perMessage(consumeRate, n), err
	}}
}

// life measures publishing and consuming at the same time.
func life(e *env) scenario {
	one := load{callers: 32, perCall: 1, payload: smallPayload}
	hundred := load{callers: 1, perCall: 100, payload: smallPayload}
	many := options{subscribers: 1, inFlight: 256}
	workers := options{subscribers: 1, inFlight: 32}
	var (
		now   = lifeTrial(ours, many, one.of(e.size(100_000)))
		alike = lifeTrial(ours, many, one.of(e.size(100_000)).alike())
		later = lifeTrial(ours, many, one.of(e.size(100_000)).soon())

		stream     = lifeTrial(redisStream, options{subscribers: 32}, one.of(e.size(20_000)))
		asynqLater = lifeTrial(asynqSystem, workers, one.of(e.size(10_000)).soon())
	)
	return scenario{
		name:  "life",
		title: "A message's whole life",
		about: "Subscribers consume and ack while callers publish. Delayed messages are all due after 300 ms, as timeouts are, or " +
			"each after 100 to 600 ms at random. The rate is that of whole lives, from the first publish to the last arrival. " +
			"Where publishing is faster than consuming, messages are the later the longer that lasts. asynq's rate counts the while " +
			"that it sleeps when it finds nothing, as it does at first.",
		trials: []trial{
			now, alike, later,
			lifeTrial(ours, many, hundred.of(e.size(200_000))),
			lifeTrial(ours, many, hundred.of(e.size(200_000)).alike()),
			lifeTrial(ours, many, hundred.of(e.size(200_000)).soon()),
			stream,
			lifeTrial(asynqSystem, workers, one.of(e.size(10_000))),
			asynqLater,
			lifeTrial(raw, many, hundred.of(e.size(200_000))),
			lifeTrial(raw, many, hundred.of(e.size(200_000)).alike()),
			lifeTrial(raw, many, hundred.of(e.size(200_000)).soon()),
		},
		targets: func(r results) []target {
			return []target{
				atMost(8, "µs of Redis CPU for a message's whole life, due now", r.get(now, redisCPU)).inREADME("µs of Redis for a message's whole life, due now"),
				atMost(8, "the same, all delayed by 300 ms", r.get(alike, redisCPU)),
				atMost(8, "the same, delayed by 100 to 600 ms", r.get(later, redisCPU)).inREADME("the same, delayed by 100 to 600 ms at random"),
				// 8 µs are of a machine on which watermill-redisstream took 24, and asynq 42.
				atMost(0.33, "the same, due now: times that of watermill-redisstream", r.get(now, redisCPU)/r.get(stream, redisCPU)),
				atMost(0.19, "the same, delayed by 100 to 600 ms: times that of asynq", r.get(later, redisCPU)/r.get(asynqLater, redisCPU)),
			}
		},
	}
}

// alike is the load with messages that are all due a while after they are published, and so about
// in that order.
func (l load) alike() load {
	l.by = "300 ms"
	l.due = func(int) time.Time { return wholeMillis(time.Now().Add(300 * time.Millisecond)) }
	return l
}

// soon is the load with messages that are due a little after they are published, each at a time of
// its own.
func (l load) soon() load {
	l.by = "100 to 600 ms"
	l.due = func(int) time.Time {
		return wholeMillis(time.Now().Add(100*time.Millisecond + rand.N(500*time.Millisecond)))
	}
	return l
}

// wholeMillis is the first whole millisecond not before t. That is what due times are kept in.
func wholeMillis(t time.Time) time.Time {
	return t.Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

func lifeTrial(s system, o options, l load) trial {
	return trial{s.name, fmt.Sprintf("%v; %v", l, o), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		t := newTally(l.messages)
		if err := q.consume(t.arrive); err != nil {
			return nil, err
		}
		l.dues = make([]time.Time, l.messages)
		u, err := e.measure(func() error { return errors.Join(q.publishAll(l), t.wait()) })
		if err != nil {
			return nil, err
		}
		found := u.perMessage(lifeRate, l.messages)
		if l.due != nil {
			late, err := t.lateness(s, l.dues)
			if err != nil {
				return nil, err
			}
			maps.Copy(found, late)
		}
		return found, q.finish(t)
	}}
}
