package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const relayName = "relay to watermill-redisstream"

var relayed = system{name: relayName, open: openRelay}

// openRelay relays to a stream on the same server; subscribers is how many calls of Publish are
// under way at once. A message arrives when the stream's Publisher has returned nil.
func openRelay(e *env, o options) (*queue, error) {
	topic := e.topic()
	client, streamClient := e.newClient(), e.newClient()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	if err != nil {
		return nil, err
	}
	stream, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: streamClient}, nil)
	if err != nil {
		return nil, err
	}
	destination := &noting{Publisher: stream}
	config := relay.Config{
		Subscriber:       redisdelay.SubscriberConfig{Client: client, TakeoverWindow: -1}, // as in ours.go
		Topics:           []string{topic},
		Destination:      destination,
		DestinationTopic: func(topic string, _ *message.Message) string { return "stream-" + topic },
		Concurrency:      o.subscribers,
	}
	r, err := relay.New(config, nil)
	if err != nil {
		return nil, err
	}
	if err := registerRelay(config, topic); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ended <- nil // until it runs
	return &queue{
		publish: func(messages []*message.Message, due []time.Time) error {
			for i := range due {
				redisdelay.DelayUntil(messages[i], due[i])
			}
			return publisher.Publish(topic, messages...)
		},
		consume: func(handle func(payload []byte)) error {
			destination.handle = handle
			<-ended
			go func() { ended <- r.Run(running) }()
			return nil
		},
		unsettled: func() (int64, error) {
			return client.HLen(ctx, redisdelay.DefaultKeyPrefix+":{"+topic+"}:messages").Result()
		},
		close: closeAll([]func() error{
			func() error { stop(); return <-ended },
			publisher.Close, stream.Close, client.Close, // stream closes its client
		}),
	}, nil
}

// registerRelay has the relay's group there before anything is published.
func registerRelay(config relay.Config, topic string) error {
	config.Subscriber.ConsumerGroup = relay.DefaultConsumerGroup
	subscriber, err := redisdelay.NewSubscriber(config.Subscriber, nil)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	return subscriber.Close()
}

// noting notes what was published.
type noting struct {
	message.Publisher
	handle func(payload []byte)
}

func (p *noting) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err == nil {
		for _, msg := range messages {
			p.handle(msg.Payload)
		}
	}
	return err
}

func relaying(e *env) scenario {
	n := e.size(10_000)
	late := latenessTrial(relayed, options{subscribers: 4}, n)
	late.what = fmt.Sprintf("%s messages, 1,000 due a second", count(n))
	var rates []trial
	for _, calls := range []int{1, 4} {
		t := consumeTrial(relayed, options{subscribers: calls}, e.size(40_000))
		t.what = fmt.Sprintf("%s messages that are due, %d %s of Publish at once", count(e.size(40_000)), calls, plural(calls, "call"))
		rates = append(rates, t)
	}
	hundred := load{callers: 1, perCall: 100, payload: smallPayload}
	return scenario{
		name:  "relay",
		title: "Relaying to a Redis Stream",
		about: "A relay publishes what is due to watermill-redisstream, on the same server. Late is until its Publish has " +
			"returned. What is published directly, without delay or relay, is beside it.",
		trials: append([]trial{late}, append(rates,
			publishTrial(redisStream, hundred.of(e.size(40_000))),
			publishTrial(redisStream, load{callers: 4, perCall: 100, payload: smallPayload}.of(e.size(40_000))))...),
		targets: func(r results) []target {
			return []target{atMost(10, "ms late in the stream that a relay publishes to, 1,000 due a second, p99", r.get(late, lateP99))}
		},
	}
}
