package main

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
)

const largePayload = 10_000_000

func large(e *env) scenario {
	n := 40
	if e.smoke {
		n = 4
	}
	return scenario{
		name:  "large",
		title: "Large payloads",
		about: fmt.Sprintf("%d messages of 10 MB, published one after the other, then consumed. go-redis alone sets keys, and "+
			"gets them. Bytes allocated for a byte of payload show how often it is copied; making the payload, which is part of "+
			"publishing, is one.", n),
		trials: []trial{
			largeTrial(ours, options{subscribers: 1, inFlight: 1, payload: largePayload}, n),
			setAndGet(n),
			largeTrial(redisStream, options{subscribers: 1}, n),
			largeTrial(asynqSystem, options{subscribers: 1, inFlight: 1}, n),
		},
		targets: func(results) []target { return nil },
	}
}

func largeTrial(s system, o options, n int) trial {
	return trial{s.name, fmt.Sprintf("%d messages of 10 MB", n), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		l := load{messages: n, callers: 1, perCall: 1, payload: largePayload}
		published, err := e.measure(func() error { return q.publishAll(l) })
		if err != nil {
			return nil, err
		}
		t := newTally(n)
		t.payload = largePayload
		consumed, err := e.measure(func() error { return errors.Join(q.consume(t.arrive), t.wait()) })
		if err != nil {
			return nil, err
		}
		return largeFigures(published, consumed, n), q.finish(t)
	}}
}

func setAndGet(n int) trial {
	return trial{rawName, fmt.Sprintf("SET and GET of %d times 10 MB", n), func(e *env) (figures, error) {
		client := e.newClient()
		keys := make([]string, n)
		set, err := e.measure(func() error {
			for i := range keys {
				keys[i] = watermill.NewUUID()
				if err := client.Set(ctx, keys[i], make([]byte, largePayload), 0).Err(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		got, err := e.measure(func() error {
			for _, key := range keys {
				if _, err := client.Get(ctx, key).Bytes(); err != nil {
					return err
				}
			}
			return nil
		})
		return largeFigures(set, got, n), errors.Join(err, client.Close())
	}}
}

func largeFigures(published, consumed usage, n int) figures {
	total := float64(n) * largePayload
	return figures{
		publishMB:     total / published.wall.Seconds() / 1e6,
		consumeMB:     total / consumed.wall.Seconds() / 1e6,
		publishCopies: float64(published.bytes) / total,
		consumeCopies: float64(consumed.bytes) / total,
	}
}
