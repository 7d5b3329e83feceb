package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// topics is one Publisher and one Subscriber of ours with many topics.
type topics struct {
	names      []string
	client     *redis.Client
	publisher  *redisdelay.Publisher
	subscriber *redisdelay.Subscriber
}

// defaultPool is the number of connections that a client of go-redis has at most by default.
var defaultPool = 10 * runtime.GOMAXPROCS(0)

func openTopics(e *env, n int) (*topics, error) {
	t := &topics{client: e.newClientWithPool(defaultPool)}
	for range n {
		t.names = append(t.names, e.topic())
	}
	var err error
	if t.publisher, err = redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: t.client}, nil); err != nil {
		return nil, err
	}
	t.subscriber, err = redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: t.client}, nil)
	return t, err
}

func (t *topics) consume(handle func(payload []byte)) error {
	for _, name := range t.names {
		if err := consumeWatermill(t.subscriber, name, handle); err != nil {
			return err
		}
	}
	return nil
}

// publish publishes message i of a load to the topic with a number.
func (t *topics) publish(l load, i, topic int) error {
	l.perCall = 1
	messages, due := l.call(i)
	redisdelay.DelayUntil(messages[0], due[0])
	return t.publisher.Publish(t.names[topic], messages...)
}

// publishEach publishes a load that has one message for each topic.
func (t *topics) publishEach(l load) error {
	for i := range t.names {
		if err := t.publish(l, i, i); err != nil {
			return err
		}
	}
	return nil
}

func (t *topics) close() error {
	return errors.Join(t.publisher.Close(), t.subscriber.Close(), t.client.Close())
}

func manyTopics(e *env) scenario {
	n := e.size(10_000)
	mine := trial{oursName, fmt.Sprintf("%s topics, 1 Subscriber, a pool of %d connections", count(n), defaultPool),
		func(e *env) (figures, error) { return manyTopicsRound(e, n) }}
	return scenario{
		name:  "topics",
		title: "Many topics",
		about: "One Subscriber has many topics, each with one message, due at random within 10 s. The memory is what was " +
			"added by subscribing, publishing and consuming: in this process heap and stacks in use after a garbage " +
			"collection, the consumer's goroutine included; in Redis what is left when all messages are gone.",
		trials: []trial{mine},
		once:   true,
		targets: func(r results) []target {
			late := atMost(50, fmt.Sprintf("ms late with %s topics, p99", count(n)), r.get(mine, lateP99))
			return []target{
				atMost(float64(defaultPool+5), fmt.Sprintf("connections with %s topics", count(n)), r.get(mine, connections)),
				late.inREADME(late.what),
			}
		},
	}
}

func manyTopicsRound(e *env, n int) (figures, error) {
	heldHere, heldThere, err := e.held()
	if err != nil {
		return nil, err
	}
	t, err := openTopics(e, n)
	if err != nil {
		return nil, err
	}
	tally := newTally(n)
	if err := t.consume(tally.arrive); err != nil {
		return nil, err
	}
	l := load{messages: n, payload: smallPayload, dues: spread(n, 10*time.Second)}
	l.due = func(i int) time.Time { return l.dues[i] }
	if err := errors.Join(t.publishEach(l), tally.wait()); err != nil {
		return nil, err
	}
	found, err := tally.lateness(ours, l.dues)
	if err != nil {
		return nil, err
	}
	here, there, err := e.held()
	if err != nil {
		return nil, err
	}
	clients, err := e.server.Info("clients")
	if err != nil {
		return nil, err
	}
	open, err := strconv.Atoi(clients["connected_clients"])
	maps.Copy(found, figures{
		connections:   float64(open - 1), // without the one that asks
		heapPerTopic:  float64(here-heldHere) / float64(n),
		redisPerTopic: float64(there-heldThere) / float64(n),
	})
	return found, errors.Join(err, t.close())
}

// spread are due times, spread at random over a while that begins when so many messages can be
// published.
func spread(n int, over time.Duration) []time.Time {
	start := time.Now().Add(2*time.Second + time.Duration(n)*200*time.Microsecond)
	dues := make([]time.Time, n)
	for i := range dues {
		dues[i] = wholeMillis(start.Add(rand.N(over)))
	}
	return dues
}

// held is how many bytes this process and the server hold.
func (e *env) held() (here, there int64, err error) {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	there, err = e.server.Memory()
	return int64(mem.HeapAlloc + mem.StackInuse), there, err
}
