package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// KeysAtOnce is how many keys a publisher publishes to at a time, before it goes on to the next
// ones.
const KeysAtOnce = 20

// keyOf returns the partition key of message i. A key gets Rounds messages soon after one another,
// and more when all keys had their turn.
func (w Worker) keyOf(i int) string {
	turn := KeysAtOnce * w.Rounds
	return fmt.Sprintf("%s-%d", w.KeySet, (i/turn*KeysAtOnce+i%KeysAtOnce)%w.Keys)
}

// keys has the due time of the last message of each key, in ms.
type keys struct {
	mu   sync.Mutex
	last map[string]int64
}

// keyed makes a message with a key due after its delay, but later than the last one of its key. It
// completes the event about the message.
func (p *process) keyed(note *Event, msg *message.Message) {
	key := msg.Metadata.Get(partition.KeyMetadata)
	plain, err := partition.TopicOf(note.Topic, p.Partitions, key)
	if err != nil {
		panic(err)
	}
	p.keys.mu.Lock()
	defer p.keys.mu.Unlock()
	if p.keys.last == nil {
		p.keys.last = map[string]int64{}
	}
	due := max(time.Now().UnixMilli()+note.Delay, p.keys.last[key]+3)
	p.keys.last[key] = due
	redisdelay.DelayUntil(msg, time.UnixMilli(due))
	note.Topic, note.Key, note.Partitions, note.Due, note.Delay = plain, key, p.Partitions, due, 0
}

// errorOf returns what a call of Publish says about one of its messages.
func errorOf(err error, msg *message.Message) error {
	var partly *partition.PublishError
	if !errors.As(err, &partly) {
		return err
	}
	for _, part := range partly.Parts {
		if slices.Contains(part.Messages, msg) {
			return part.Err
		}
	}
	return err
}

// publisher returns a Publisher of plain topics, or of partitioned ones.
func (p *process) publisher(config redisdelay.PublisherConfig) (message.Publisher, error) {
	if p.Partitions == 0 {
		return redisdelay.NewPublisher(config, p.logger())
	}
	return partition.NewPublisher(partition.PublisherConfig{Partitions: p.Partitions, Publisher: config}, p.logger())
}

// subscriber returns a Subscriber of plain topics, or of partitioned ones.
func (p *process) subscriber(config redisdelay.SubscriberConfig) (message.Subscriber, error) {
	if p.Partitions == 0 {
		return redisdelay.NewSubscriber(config, p.logger())
	}
	each, number := config.MaxInFlight, p.Partitions
	config.MaxInFlight *= number
	if p.Follows {
		number = 0
	}
	return partition.NewSubscriber(partition.SubscriberConfig{
		Partitions: number, PartitionMaxInFlight: each, Subscriber: config,
	}, p.logger())
}
