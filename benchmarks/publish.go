package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func publishing(e *env) scenario {
	one := load{callers: 32, perCall: 1, payload: smallPayload}
	hundred := load{callers: 1, perCall: 100, payload: smallPayload}
	var (
		oneNow     = publishTrial(ours, one.of(e.size(150_000)))
		oneLater   = publishTrial(ours, one.of(e.size(150_000)).delayed())
		batchNow   = publishTrial(ours, hundred.of(e.size(400_000)))
		batchLater = publishTrial(ours, hundred.of(e.size(400_000)).delayed())
		stream     = publishTrial(redisStream, one.of(e.size(60_000)))
	)
	return scenario{
		name:  "publish",
		title: "Publishing",
		about: "Callers publish one call after the other. Nobody consumes; the group of watermill-redisdelay is there. A message is a UUID, " +
			"100 bytes, and one metadata pair. Making it is part of the figures; the row \"nothing\" is that alone.",
		trials: []trial{
			oneNow, stream,
			publishTrial(asynqSystem, one.of(e.size(40_000))),
			publishTrial(raw, one.of(e.size(100_000))),
			oneLater,
			publishTrial(asynqSystem, one.of(e.size(40_000)).delayed()),
			publishTrial(raw, one.of(e.size(100_000)).delayed()),
			batchNow,
			publishTrial(redisStream, hundred.of(e.size(40_000))),
			publishTrial(raw, hundred.of(e.size(400_000))),
			batchLater,
			publishTrial(raw, hundred.of(e.size(400_000)).delayed()),
			publishTrial(nothing, hundred.of(e.size(1_000_000))),
		},
		targets: func(r results) []target {
			times := func(t trial) float64 { return r.get(t, publishRate) / r.get(stream, publishRate) }
			return []target{
				atLeast(2, "publish, 32 callers, 1 a call: times watermill-redisstream", times(oneNow)).inREADME("publish, 32 callers: times watermill-redisstream"),
				atLeast(2.5, "publish, 1 caller, 100 a call: times watermill-redisstream with 32 callers", times(batchNow)),
			}
		},
	}
}

// of is the load with so many messages.
func (l load) of(n int) load {
	l.messages = n
	return l
}

// delayed is the load with messages that are not due while the benchmarks run.
func (l load) delayed() load {
	l.by, l.due = "", func(int) time.Time { return time.Now().Add(time.Hour) }
	return l
}

func publishTrial(s system, l load) trial {
	return trial{s.name, l.String(), func(e *env) (figures, error) {
		q, err := s.open(e, options{subscribers: 1, inFlight: 1})
		if err != nil {
			return nil, err
		}
		u, err := e.measure(func() error { return q.publishAll(l) })
		if err != nil {
			return nil, err
		}
		return u.perMessage(publishRate, l.messages), q.finishStored(l.messages)
	}}
}

// nothing counts messages and throws them away.
var nothing = system{name: "nothing", open: func(*env, options) (*queue, error) {
	var published atomic.Int64
	return &queue{
		publish: func(messages []*message.Message, _ []time.Time) error {
			published.Add(int64(len(messages)))
			return nil
		},
		stored: func() (int64, error) { return published.Load(), nil },
		close:  func() error { return nil },
	}, nil
}}

// memory is about messages that wait.
func memory(e *env) scenario {
	waiting := load{callers: 32, perCall: 100, payload: smallPayload}.of(e.size(100_000)).delayed()
	mine := memoryTrial(ours, waiting)
	return scenario{
		name:  "memory",
		title: "What a waiting message holds in Redis",
		about: "used_memory of the server before and after publishing messages that are due in an hour, each a UUID, " +
			"100 bytes, and one metadata pair. watermill-redisstream has no delays: its messages wait in the stream. The last " +
			"rows: the server's tables are fullest just before 2^17 entries, and there twice for a while when they begin to grow.",
		trials: []trial{
			mine, memoryTrial(redisStream, waiting), memoryTrial(asynqSystem, waiting), memoryTrial(raw, waiting),
			memoryTrial(ours, waiting.of(e.size(131_000))), memoryTrial(ours, waiting.of(e.size(132_000))),
		},
		targets: func(r results) []target {
			return []target{atMost(380, "bytes that a waiting message holds", r.get(mine, heldBytes)).inREADME(
				"bytes of Redis that a waiting message of 100 bytes holds")}
		},
	}
}

func memoryTrial(s system, l load) trial {
	return trial{s.name, fmt.Sprintf("%s waiting", count(l.messages)), func(e *env) (figures, error) {
		q, err := s.open(e, options{subscribers: 1, inFlight: 1})
		if err != nil {
			return nil, err
		}
		before, err := e.server.Memory()
		if err != nil {
			return nil, err
		}
		if err := q.publishAll(l); err != nil {
			return nil, err
		}
		if err := q.finishStored(l.messages); err != nil {
			return nil, err
		}
		after, err := e.server.Memory()
		return figures{heldBytes: float64(after-before) / float64(l.messages)}, err
	}}
}
