// Command life takes messages through their whole life, in phases. The runner of make pairs
// compiles it into each of the two trees, so it uses only what is public and what both have. Before
// each phase it waits for a line on standard input. After each it prints a line of JSON, so that
// the runner can read the server's statistics in between.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

const topic = "life"

type life struct {
	client    *redis.Client
	publisher *redisdelay.Publisher
	messages  int
	callers   int
}

func main() {
	addr := flag.String("addr", "", "the server's address")
	messages := flag.Int("messages", 100_000, "messages of each phase")
	callers := flag.Int("callers", 32, "goroutines that publish")
	flag.Parse()
	if err := run(*addr, *messages, *callers); err != nil {
		fmt.Fprintln(os.Stderr, "life:", err)
		os.Exit(1)
	}
}

func run(addr string, messages, callers int) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	if err != nil {
		return err
	}
	defer publisher.Close()
	l := &life{client, publisher, messages, callers}
	subscriber, err := l.subscriber()
	if err != nil {
		return err
	}
	if err := errors.Join(subscriber.SubscribeInitialize(topic), subscriber.Close()); err != nil {
		return err
	}

	lines := bufio.NewScanner(os.Stdin)
	for _, phase := range []struct {
		name string
		do   func() error
	}{
		{"publish", func() error { return l.publish(func() time.Duration { return 0 }) }},
		{"consume", func() error { return l.consume(func() error { return nil }) }},
		{"delayed", func() error {
			return l.consume(func() error {
				return l.publish(func() time.Duration { return time.Duration(100+rand.IntN(500)) * time.Millisecond })
			})
		}},
	} {
		if !lines.Scan() {
			return errors.Join(errors.New("the runner is gone"), lines.Err())
		}
		if err := l.measure(phase.name, phase.do); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return nil
}

// measure does a phase, and prints what that took.
func (l *life) measure(name string, do func() error) error {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	runtime.ReadMemStats(&after)
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"phase": name, "messages": l.messages, "seconds": seconds, "allocs": after.Mallocs - before.Mallocs,
	})
}

// publish publishes all messages, one a call.
func (l *life) publish(delay func() time.Duration) error {
	var next atomic.Int64
	failed := make([]error, l.callers)
	var callers sync.WaitGroup
	for c := range l.callers {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for failed[c] == nil && next.Add(1) <= int64(l.messages) {
				msg := message.NewMessage(watermill.NewUUID(), message.Payload(strings.Repeat("x", 100)))
				msg.Metadata.Set("kind", "order")
				if d := delay(); d > 0 {
					redisdelay.DelayFor(msg, d)
				}
				failed[c] = l.publisher.Publish(topic, msg)
			}
		}()
	}
	callers.Wait()
	return errors.Join(failed...)
}

func (l *life) subscriber() (*redisdelay.Subscriber, error) {
	config := redisdelay.SubscriberConfig{Client: l.client, MaxInFlight: 256}
	// Most topics are older than their takeover window. Older trees have none.
	if window := reflect.ValueOf(&config).Elem().FieldByName("TakeoverWindow"); window.IsValid() {
		window.SetInt(-1)
	}
	return redisdelay.NewSubscriber(config, nil)
}

// consume has a subscription ack all messages, while meanwhile is done. Close waits for the acks.
func (l *life) consume(meanwhile func() error) error {
	subscriber, err := l.subscriber()
	if err != nil {
		return err
	}
	out, err := subscriber.Subscribe(context.Background(), topic)
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	failed := make(chan error, 1)
	go func() { failed <- meanwhile() }()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for n := range l.messages {
		select {
		case msg := <-out:
			msg.Ack()
		case <-patience.C:
			return errors.Join(fmt.Errorf("%d of %d messages came within a minute", n, l.messages), subscriber.Close())
		}
	}
	return errors.Join(<-failed, subscriber.Close())
}
