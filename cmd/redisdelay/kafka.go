package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/xdg-go/scram"
)

// kafkaKind is a destination at Kafka, through watermill-kafka.
type kafkaKind struct {
	brokers     *list
	key         *string
	partitioner *choice
	username    *string
	password    *secret
	sasl        *choice
	tls         *tlsSettings
}

func declareKafka(s *settings) destinationKind {
	return &kafkaKind{
		brokers: s.list("kafka", "for --to kafka: `host:port` of one or several brokers, by which the others are found"),
		key:     s.text("kafka-key", "partition_key", "metadata key whose value is the key of the record; records with the same key are in one partition"),
		partitioner: s.choice("kafka-partitioner", "hash", "`hash`: the partition of a key is that of watermill-kafka; `murmur2`: that of Kafka's own clients for Java",
			"hash", "murmur2"),
		username: s.text("kafka-username", "", "user for SASL"),
		password: s.secret("kafka-password", "the password"),
		sasl:     s.choice("kafka-sasl", "plain", "`plain`, `scram-sha-256` or `scram-sha-512`: how user and password are sent", "plain", "scram-sha-256", "scram-sha-512"),
		tls:      declareTLS(s, "kafka", ""),
	}
}

func (k *kafkaKind) open(_ int, logger *slog.Logger) (*destination, error) {
	if len(*k.brokers) == 0 {
		return nil, refuse("--kafka is missing: a host:port")
	}
	for _, broker := range *k.brokers {
		if host, port, err := net.SplitHostPort(broker); err != nil || host == "" || port == "" || strings.Contains(broker, "@") {
			return nil, refuse("--kafka must have a host:port for each broker, and nothing else")
		}
	}
	config, err := k.config()
	if err != nil {
		return nil, err
	}
	publisher := &kafkaPublisher{brokers: *k.brokers, connect: func() (message.Publisher, error) {
		return kafka.NewPublisher(kafka.PublisherConfig{
			Brokers:               *k.brokers,
			Marshaler:             kafkaMarshaler{key: *k.key},
			OverwriteSaramaConfig: config,
		}, watermill.NewSlogLogger(logger))
	}}
	return &destination{Publisher: publisher, permanent: refusedByKafka, check: publisher.check}, nil
}

func (k *kafkaKind) config() (*sarama.Config, error) {
	if (*k.username == "") != (k.password.value == "") {
		return nil, refuse("--kafka-username and %s must be set together", variable("kafka-password"))
	}
	tlsConfig, err := k.tls.config(false)
	if err != nil {
		return nil, err
	}
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.ClientID = "redisdelay"
	config.Version = sarama.V2_1_0_0 // the oldest that Kafka 4 speaks
	config.Net.DialTimeout, config.Net.ReadTimeout, config.Net.WriteTimeout = connectTimeout, 10*time.Second, 10*time.Second
	config.Net.TLS.Enable, config.Net.TLS.Config = tlsConfig != nil, tlsConfig
	if *k.username != "" {
		k.authenticate(config)
	}
	config.Producer.RequiredAcks = sarama.WaitForAll
	// The relay tries again, so the client gives up soon.
	config.Producer.Retry.Max, config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 1, 1, 100*time.Millisecond
	// The broker says what is too large. A request has one message, so that it says so of no other.
	config.Producer.MaxMessageBytes = int(sarama.MaxRequestSize) - 1<<20
	config.Producer.Flush.MaxMessages = 1
	config.Producer.Partitioner = map[string]sarama.PartitionerConstructor{
		"hash": sarama.NewHashPartitioner, "murmur2": sarama.NewMurmur2Partitioner,
	}[k.partitioner.value]
	return config, nil
}

func (k *kafkaKind) authenticate(config *sarama.Config) {
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, *k.username, k.password.value
	config.Net.SASL.Handshake = true
	switch k.sasl.value {
	case "plain":
		config.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	case "scram-sha-256":
		config.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA256
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{by: scram.SHA256} }
	case "scram-sha-512":
		config.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{by: scram.SHA512} }
	}
}

// scramClient makes the exchange of SCRAM by package scram.
type scramClient struct {
	by           scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.by.NewClient(user, password, authzID)
	if err == nil {
		c.conversation = client.NewConversation()
	}
	return err
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

func (c *scramClient) Done() bool { return c.conversation.Done() }

// kafkaPublisher is the Publisher of watermill-kafka, which cannot be made while Kafka is down. It
// is made at the first use that succeeds.
type kafkaPublisher struct {
	connect func() (message.Publisher, error)
	brokers []string

	mu        sync.Mutex
	publisher message.Publisher // nil until it is made
	making    *kafkaAttempt     // nil if there is none
	closed    bool
}

// kafkaAttempt is an attempt to make the Publisher, which concurrent callers share.
type kafkaAttempt struct {
	ended     chan struct{}
	publisher message.Publisher
	err       error
}

// Publish publishes messages, one after the other.
func (p *kafkaPublisher) Publish(topic string, messages ...*message.Message) error {
	publisher, err := p.made(messages[0].Context())
	if err != nil {
		return err
	}
	return publisher.Publish(topic, messages...)
}

// made returns the Publisher. It makes it if there is none, and waits at most until ctx ends.
func (p *kafkaPublisher) made(ctx context.Context) (message.Publisher, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.publisher != nil {
		defer p.mu.Unlock()
		return p.publisher, nil
	}
	if p.making == nil {
		p.making = &kafkaAttempt{ended: make(chan struct{})}
		go p.make(p.making)
	}
	attempt := p.making
	p.mu.Unlock()
	select {
	case <-attempt.ended:
		return attempt.publisher, attempt.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// make makes the attempt. It runs in a separate goroutine, so that neither Close nor a caller whose
// context ends must wait for it.
func (p *kafkaPublisher) make(attempt *kafkaAttempt) {
	defer close(attempt.ended)
	publisher, err := p.connect()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making = nil
	switch {
	case err != nil:
		attempt.err = fmt.Errorf("connect to Kafka: %w", err)
	case p.closed:
		attempt.err = errors.Join(errClosed, publisher.Close())
	default:
		p.publisher, attempt.publisher = publisher, publisher
	}
}

// check returns an error if Kafka could not be reached yet, or if no broker accepts a connection.
func (p *kafkaPublisher) check(ctx context.Context) error {
	if _, err := p.made(ctx); err != nil {
		return err
	}
	var errs []error
	for _, broker := range p.brokers {
		dialer := net.Dialer{Timeout: connectTimeout}
		connection, err := dialer.DialContext(ctx, "tcp", broker)
		if err == nil {
			return connection.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close closes the Publisher.
func (p *kafkaPublisher) Close() error {
	p.mu.Lock()
	publisher := p.publisher
	p.closed = true
	p.mu.Unlock()
	if publisher == nil {
		return nil
	}
	return publisher.Close()
}

// kafkaMarshaler is the marshaler of watermill-kafka, with the value of a metadata key as the
// record's key. Without it, any partition may get the record. Its errors are permanent.
type kafkaMarshaler struct {
	kafka.DefaultMarshaler
	key string
}

func (m kafkaMarshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	if _, there := msg.Metadata[kafka.UUIDHeaderKey]; there {
		return nil, errUUIDKey
	}
	record, err := m.DefaultMarshaler.Marshal(topic, msg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	if key := msg.Metadata[m.key]; key != "" {
		record.Key = sarama.StringEncoder(key)
	}
	return record, nil
}

// refusedByKafka returns whether the error is about the message itself, so that a retry cannot
// help.
func refusedByKafka(err error) bool {
	var tooLarge sarama.ConfigurationError // the client's own limit
	return errors.Is(err, errUnsendable) || errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrInvalidTopic) ||
		errors.As(err, &tooLarge)
}
