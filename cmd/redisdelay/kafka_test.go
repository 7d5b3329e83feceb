package main

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

const kafkaPartitions = 4

// startKafka starts a Kafka in this process, and returns its address.
func startKafka(t *testing.T, options ...kfake.Opt) (addr string) {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(kafkaPartitions, topic)}, options...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster.ListenAddrs()[0]
}

// consumeKafka reads the topic from its beginning.
func consumeKafka(t *testing.T, addr, topic string) *consumer {
	t.Helper()
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	from, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{addr}, Unmarshaler: placed{}, OverwriteSaramaConfig: config,
	}, nil)
	require.NoError(t, err)
	return consume(t, from, topic)
}

// placed is the unmarshaler of watermill-kafka. If a record has a key, it adds key and partition to
// the metadata.
type placed struct{ kafka.DefaultMarshaler }

func (p placed) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := p.DefaultMarshaler.Unmarshal(record)
	if err == nil && record.Key != nil {
		msg.Metadata.Set("placed", fmt.Sprint(string(record.Key), "@", record.Partition))
	}
	return msg, err
}

func toKafka(t *testing.T, environment []string, args ...string) *destination {
	t.Helper()
	to, err := reading(t, environment, args...).kinds["kafka"].open(1, quiet())
	require.NoError(t, err)
	t.Cleanup(func() { _ = to.Close() })
	return to
}

func TestToKafka(t *testing.T) {
	t.Parallel()
	addr := startKafka(t)
	relaysOverAStop(t, start, consumeKafka(t, addr, topic), nil, "--to", "kafka", "--kafka", addr)
}

func TestKafkaStartsLaterAndEnds(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	store := redistest.Start(t)
	client := store.Client(t)
	p := startRelay(t, start, store, nil, "--to", "kafka", "--kafka", "127.0.0.1:"+port, "--health", "127.0.0.1:0", "--backoff", "20ms..1s")
	orders := publishOrders(t, client, topic, 20, time.Millisecond)
	p.await("The destination fails to take messages")
	p.awaitUnready("127.0.0.1:" + port)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(kafkaPartitions, topic), kfake.Ports(listens(t, port)))
	require.NoError(t, err)
	defer cluster.Close()
	requireAll(t, orders, consumeKafka(t, cluster.ListenAddrs()[0], topic).await(t, len(orders)))
	p.awaitProbe("/readyz", 200)
	cluster.Close()
	p.awaitUnready("127.0.0.1:" + port)
	p.stop()
}

// Records with one key are in one partition: that of watermill-kafka, or that of Kafka's clients
// for Java.
func TestKeyDecidesThePartitionOfKafka(t *testing.T) {
	t.Parallel()
	addr := startKafka(t, kfake.SeedTopics(kafkaPartitions, "hash", "murmur2"))
	for kind, want := range map[string]sarama.PartitionerConstructor{"hash": sarama.NewHashPartitioner, "murmur2": sarama.NewMurmur2Partitioner} {
		to := toKafka(t, nil, "--kafka", addr, "--kafka-partitioner", kind, "--kafka-key", "customer")
		var all []*message.Message
		for i := range 20 {
			msg := message1()
			msg.Metadata.Set("customer", fmt.Sprint("customer ", i%10))
			msg.Metadata.Set("partition_key", "not the key here")
			all = append(all, msg)
		}
		all = append(all, message1())
		require.NoError(t, to.Publish(kind, all...))
		partitions := map[string]bool{}
		for _, a := range consumeKafka(t, addr, kind).await(t, len(all)) {
			key := a.metadata["customer"]
			if key == "" {
				require.Empty(t, a.metadata["placed"], "a message without the metadata has no key")
				continue
			}
			partition, err := want(kind).Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(key)}, kafkaPartitions)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(key, "@", partition), a.metadata["placed"])
			partitions[a.metadata["placed"]] = true
		}
		require.Len(t, partitions, 10)
	}
}

func TestMessageRefusedByKafkaForGoodIsDead(t *testing.T) {
	t.Parallel()
	addr := startKafka(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "2000000"}))
	to := toKafka(t, nil, "--kafka", addr)
	for size, permanent := range map[int]bool{100: false, 1_900_000: false, 2_100_000: true, 101 << 20: true} {
		err := to.Publish(topic, message.NewMessage("order", []byte(strings.Repeat("x", size))))
		require.Equal(t, permanent, err != nil, "%d bytes: %v", size, err)
		require.Equal(t, permanent, err != nil && to.permanent(err), "%d bytes: %v", size, err)
	}
	odd := message1()
	odd.Metadata.Set("_watermill_message_uuid", "another")
	err := to.Publish(topic, odd)
	require.ErrorIs(t, err, errUUIDKey)
	require.True(t, to.permanent(err))
	err = to.Publish("nowhere", message1())
	require.Error(t, err)
	require.False(t, to.permanent(err), "the topic may come")
}

func TestAuthenticationAtKafka(t *testing.T) {
	t.Parallel()
	certs := newCertificates(t)
	pair, err := tls.LoadX509KeyPair(certs.serverCert, certs.serverKey)
	require.NoError(t, err)
	withTLS := kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}})
	by := func(mechanism string) []kfake.Opt {
		return []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(mechanism, "relay", "hunter2")}
	}
	trusting := []string{"--kafka-tls", "--kafka-tls-ca", certs.ca, "--kafka-tls-server-name", certifiedName}
	for name, c := range map[string]struct {
		server  []kfake.Opt
		args    []string
		wrong   bool // the password
		refused bool
	}{
		"plain":             {by("PLAIN"), nil, false, false},
		"scram-sha-256":     {by("SCRAM-SHA-256"), []string{"--kafka-sasl", "scram-sha-256"}, false, false},
		"scram-sha-512":     {by("SCRAM-SHA-512"), []string{"--kafka-sasl", "scram-sha-512"}, false, false},
		"TLS":               {append(by("PLAIN"), withTLS), trusting, false, false},
		"wrong password":    {by("PLAIN"), nil, true, true},
		"wrong by SCRAM":    {by("SCRAM-SHA-256"), []string{"--kafka-sasl", "scram-sha-256"}, true, true},
		"another mechanism": {by("SCRAM-SHA-512"), []string{"--kafka-sasl", "plain"}, false, true},
		"unknown authority": {append(by("PLAIN"), withTLS), []string{"--kafka-tls"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, password := startKafka(t, c.server...), "hunter2"
			if c.wrong {
				password = "hunter3"
			}
			to := toKafka(t, []string{"REDISDELAY_KAFKA_PASSWORD=" + password}, append([]string{"--kafka", addr, "--kafka-username", "relay"}, c.args...)...)
			err := to.Publish(topic, message1())
			if !c.refused {
				require.NoError(t, err)
				require.NoError(t, to.check(t.Context()))
				return
			}
			require.Error(t, err)
			require.False(t, to.permanent(err), "the password may be changed: %v", err)
			require.Error(t, to.check(t.Context()))
			require.NotContains(t, err.Error(), "hunter")
		})
	}
}
