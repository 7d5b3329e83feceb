package brokers

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/delayed-kafka/kafkaqueue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// partitions is how many partitions the topic has.
const partitions = 4

// kafkaMaxMessage is the largest message that the Kafka takes. The client lets larger ones pass.
const kafkaMaxMessage = 100_000

var kafkaBroker = broker{
	start: func(t *testing.T) server { return startKafka(t) },
	newPublisher: func(addr string) (message.Publisher, error) {
		return kafkaqueue.NewPublisher([]string{addr}, nil)
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		return kafkaqueue.NewSubscriber([]string{addr}, "consumers", nil)
	},
	permanent: kafkaqueue.Refused,
	refused: map[string]refusal{
		"too large for the server": {
			make: func(msg *message.Message) { msg.Payload = make([]byte, kafkaMaxMessage+1) },
			why:  "Message was too large",
		},
		"too large for the client": {
			make: func(msg *message.Message) { msg.Payload = make([]byte, 2<<20) },
			why:  "larger than configured Producer.MaxMessageBytes",
		},
	},
	addTopic: func(t *testing.T, addr, topic string) {
		admin, err := sarama.NewClusterAdmin([]string{addr}, sarama.NewConfig())
		require.NoError(t, err)
		require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
		require.NoError(t, admin.Close())
	},
}

// Each key has one partition, the same with and without a delay. With Ordered a key's messages are
// there in their order, over an outage of Kafka and from one relay to the next.
func TestKafkaHasTheMessagesOfEachKeyInOrder(t *testing.T) {
	t.Parallel() // after the outage, Kafka's client refuses each partition for ten seconds
	const keys, each = 20, 30
	s := startKafka(t)
	r := &relayed{t: t, store: redistest.Start(t), got: newReceipts()}
	r.to = testkit.NewPublisher(t, on(t, r.store))
	direct, err := kafkaBroker.newPublisher(s.addr())
	require.NoError(t, err)
	publisher, err := relay.NewPublisher(relay.PublisherConfig{Destination: direct, Delayed: r.to})
	require.NoError(t, err)
	for n := range each {
		var all []*message.Message
		for key := range keys {
			msg := message.NewMessage(fmt.Sprint(n), nil)
			msg.Metadata.Set(kafkaqueue.KeyOf, fmt.Sprint("customer ", key))
			if n > 0 { // the first goes straight to Kafka
				redisdelay.DelayFor(msg, time.Duration(n)*50*time.Millisecond)
			}
			all = append(all, msg)
		}
		require.NoError(t, publisher.Publish(topic, all...))
	}
	require.NoError(t, publisher.Close())

	ordered := func(c *relay.Config) { c.Ordered, c.Concurrency, c.BatchMessages = true, 0, 0 }
	left := func(n int64) {
		t.Helper()
		r.eventually(func() bool { return r.state().Bodies <= n }, "messages are relayed")
	}
	stop := r.run(kafkaBroker, s, ordered)
	left(keys * each * 3 / 4)
	s.restart(t)
	left(keys * each / 2)
	stop()
	r.run(kafkaBroker, s, ordered)
	left(0)

	reader, err := kafkaqueue.NewSubscriber([]string{s.addr()}, "readers", nil)
	require.NoError(t, err)
	records, err := reader.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	partition, next, seen, used := map[string]int32{}, map[string]int{}, map[string]bool{}, map[int32]bool{}
	for len(seen) < keys*each {
		msg := testkit.Receive(t, records)
		key := msg.Metadata[kafkaqueue.KeyOf]
		at, known := kafka.MessagePartitionFromCtx(msg.Context())
		require.True(t, known)
		if id := key + " " + msg.UUID; !seen[id] {
			require.Equal(t, fmt.Sprint(next[key]), msg.UUID, "%s is out of order", key)
			next[key]++
			seen[id] = true
			used[at] = true
		}
		if msg.UUID == "0" {
			partition[key] = at
		}
		require.Equal(t, partition[key], at, "%s is in two partitions", key)
		msg.Ack()
	}
	require.Len(t, used, partitions)
	require.NoError(t, reader.Close())
}

// kafkaServer is a Kafka of one node in this process.
type kafkaServer struct {
	cluster *kfake.Cluster
	gate    *gate
}

func startKafka(t *testing.T) *kafkaServer {
	t.Helper()
	s := &kafkaServer{}
	var err error
	s.cluster, err = kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.SeedTopics(partitions, topic),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": "100000"}),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			listener, err := net.Listen(network, address)
			s.gate = newGate(listener)
			return s.gate, err
		}),
	)
	require.NoError(t, err)
	t.Cleanup(s.cluster.Close)
	return s
}

func (s *kafkaServer) addr() string { return s.cluster.ListenAddrs()[0] }

// restart cuts all connections, and refuses new ones for a second. What the Kafka has stays, as it
// does in a cluster whose other nodes have it too.
func (s *kafkaServer) restart(*testing.T) {
	defer s.gate.refuse()()
	time.Sleep(time.Second) // the time that a restart takes
}

func (s *kafkaServer) stall(*testing.T) (resume func()) { return s.gate.stall() }

// throttle answers all records with an error, until relent is called.
func (s *kafkaServer) throttle(*testing.T) (relent func()) {
	throttling := make(chan struct{})
	s.cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-throttling:
			s.cluster.DropControl()
			return nil, nil, false
		default:
			s.cluster.KeepControl()
		}
		request := r.(*kmsg.ProduceRequest)
		response := request.ResponseKind().(*kmsg.ProduceResponse)
		response.ThrottleMillis = 50
		for _, topic := range request.Topics {
			answer := kmsg.ProduceResponseTopic{Topic: topic.Topic}
			for _, partition := range topic.Partitions {
				answer.Partitions = append(answer.Partitions, kmsg.ProduceResponseTopicPartition{
					Partition: partition.Partition, ErrorCode: kerr.ThrottlingQuotaExceeded.Code,
				})
			}
			response.Topics = append(response.Topics, answer)
		}
		return response, nil, true
	})
	return func() { close(throttling) }
}

// gate is a listener whose connections can be cut, refused and stalled.
type gate struct {
	net.Listener

	mu      sync.Mutex
	conns   map[*gated]bool
	refuses bool
	flows   chan struct{} // closed while data flows
}

type gated struct {
	net.Conn
	gate *gate
}

func newGate(listener net.Listener) *gate {
	g := &gate{Listener: listener, conns: map[*gated]bool{}, flows: make(chan struct{})}
	close(g.flows)
	return g
}

func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		if !g.refuses {
			c := &gated{conn, g}
			g.conns[c] = true
			g.mu.Unlock()
			return c, nil
		}
		g.mu.Unlock()
		_ = conn.Close()
	}
}

// refuse cuts all connections, and refuses new ones until accept is called.
func (g *gate) refuse() (accept func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuses = true
	for c := range g.conns {
		_ = c.Conn.Close()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.refuses = false
	}
}

// stall lets nothing through to the server until resume is called.
func (g *gate) stall() (resume func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	flows := make(chan struct{})
	g.flows = flows
	return func() { close(flows) }
}

func (c *gated) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate.mu.Lock()
	flows := c.gate.flows
	c.gate.mu.Unlock()
	<-flows
	return n, err
}

func (c *gated) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
