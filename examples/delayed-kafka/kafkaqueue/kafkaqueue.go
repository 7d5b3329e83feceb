// Package kafkaqueue has the Kafka of the examples, and a Publisher and a Subscriber with settings
// that lose nothing.
package kafkaqueue

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Start starts a Kafka inside this process, whose topics have so many partitions. stop stops it.
func Start(partitions int, topics ...string) (brokers []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), topics...))
	if err != nil {
		return nil, nil, fmt.Errorf("start a Kafka: %w", err)
	}
	fmt.Println("Kafka: embedded in this process.")
	return cluster.ListenAddrs(), cluster.Close, nil
}

// KeyOf is the metadata key whose value is the key of a record.
const KeyOf = "customer"

// marshaler makes that value the key, which decides the partition.
var marshaler = kafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
	return msg.Metadata.Get(KeyOf), nil
})

// NewPublisher returns a Publisher to Kafka for a relay. Its Publish returns nil only when all
// replicas have the message. It gives up soon, because the relay tries again.
func NewPublisher(brokers []string, logger watermill.LoggerAdapter) (message.Publisher, error) {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = 1
	config.Metadata.Retry.Max = 1
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	return kafka.NewPublisher(kafka.PublisherConfig{
		Brokers:               brokers,
		Marshaler:             marshaler,
		OverwriteSaramaConfig: config,
	}, logger)
}

// Refused is the relay's Permanent: Kafka or its client never takes a message that is too large.
func Refused(err error) bool {
	var limit sarama.ConfigurationError // the client's own, Producer.MaxMessageBytes
	return errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.As(err, &limit)
}

// NewSubscriber returns a Subscriber of a consumer group, which begins with the oldest message.
func NewSubscriber(brokers []string, group string, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond // what a crash brings again
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               brokers,
		Unmarshaler:           marshaler,
		ConsumerGroup:         group,
		OverwriteSaramaConfig: config,
		ReconnectRetrySleep:   50 * time.Millisecond,
	}, logger)
}
