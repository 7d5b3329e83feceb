package main

import (
	"errors"
	"fmt"
	"time"
)

// calm is how long systems have to come to rest before what they do when idle is measured.
const calm = 5 * time.Second

func idle(e *env) scenario {
	counts := []int{1, 100, 10_000}
	if e.smoke {
		counts = []int{1, 10, 100}
	}
	var mine []trial
	for _, n := range counts {
		mine = append(mine, idleTrial(e, n))
	}
	trials := append(mine[:len(mine):len(mine)],
		idlePeerTrial(e, redisStream, options{subscribers: 1}),
		idlePeerTrial(e, asynqSystem, options{subscribers: 1, inFlight: 32}),
	)
	return scenario{
		name:  "idle",
		title: "Idle subscriptions",
		about: "Commands a second for each subscription of a process, each to a topic of its own with one message that is due " +
			"in an hour; of watermill-redisstream and asynq, one subscriber with nothing to do. The window is longer than " +
			"the longest interval of the fallback poll.",
		trials: trials,
		once:   true,
		targets: func(r results) []target {
			var targets []target
			for i, t := range mine {
				what := fmt.Sprintf("%s idle %s: commands a second for each", count(counts[i]), plural(counts[i], "subscription"))
				targets = append(targets, atMost(0.5, what, r.get(t, sentEach)))
			}
			return targets
		},
	}
}

// idleWindow is how long an idle process is watched.
func (e *env) idleWindow() time.Duration {
	if e.smoke {
		return time.Second
	}
	return 75 * time.Second
}

func idleTrial(e *env, n int) trial {
	window := e.idleWindow()
	return trial{oursName, fmt.Sprintf("%s %s, %v", count(n), plural(n, "subscription"), window), func(e *env) (figures, error) {
		t, err := openTopics(e, n)
		if err != nil {
			return nil, err
		}
		if err := t.consume(func([]byte) {}); err != nil {
			return nil, err
		}
		if err := t.publishEach(load{messages: n, payload: smallPayload}.delayed()); err != nil {
			return nil, err
		}
		found, err := e.watchIdle(n, window)
		return found, errors.Join(err, t.close())
	}}
}

func idlePeerTrial(e *env, s system, o options) trial {
	window := e.idleWindow()
	return trial{s.name, fmt.Sprintf("1 subscription, %v", window), func(e *env) (figures, error) {
		q, err := s.open(e, o)
		if err != nil {
			return nil, err
		}
		if err := q.consume(func([]byte) {}); err != nil {
			return nil, err
		}
		found, err := e.watchIdle(1, window)
		return found, errors.Join(err, q.close())
	}}
}

func (e *env) watchIdle(subscriptions int, window time.Duration) (figures, error) {
	if !e.smoke {
		time.Sleep(calm)
	}
	u, err := e.measure(func() error {
		time.Sleep(window)
		return nil
	})
	each := window.Seconds() * float64(subscriptions)
	return figures{sentEach: float64(u.sent) / each, runEach: float64(u.ran) / each}, err
}

// crowd is about many processes that wait for the same few messages.
func crowd(e *env) scenario {
	n := e.size(2_000)
	one, many := crowdTrial(1, n), crowdTrial(64, n)
	return scenario{
		name:  "crowd",
		title: "Many idle processes",
		about: "100 messages a second, each due after 100 to 600 ms, to one group of one topic. Each subscriber has a client of " +
			"its own, as in a process of its own, and one message in flight.",
		trials: []trial{one, many},
		once:   true,
		targets: func(r results) []target {
			return []target{atMost(1.3, "commands a message with 64 idle subscribers: times those with one",
				r.get(many, commandsSent)/r.get(one, commandsSent))}
		},
	}
}

func crowdTrial(subscribers, n int) trial {
	return trial{oursName, fmt.Sprintf("%d %s, %s messages", subscribers, plural(subscribers, "subscriber"), count(n)),
		func(e *env) (figures, error) {
			q, err := openOurs(e, options{subscribers: subscribers, inFlight: 1})
			if err != nil {
				return nil, err
			}
			t := newTally(n)
			if err := q.consume(t.arrive); err != nil {
				return nil, err
			}
			if !e.smoke {
				time.Sleep(calm)
			}
			l := load{messages: n, perCall: 1, payload: smallPayload}.soon()
			l.dues = make([]time.Time, n)
			u, err := e.measure(func() error {
				ticks := time.NewTicker(10 * time.Millisecond)
				defer ticks.Stop()
				for i := range n {
					<-ticks.C
					if err := q.publish(l.call(i)); err != nil {
						return err
					}
				}
				return t.wait()
			})
			if err != nil {
				return nil, err
			}
			found, err := t.lateness(ours, l.dues)
			if err != nil {
				return nil, err
			}
			found[commandsSent] = float64(u.sent) / float64(n)
			found[commandsRun] = float64(u.ran) / float64(n)
			return found, q.finish(t)
		}}
}
