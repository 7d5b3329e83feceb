package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/rabbitmqtest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// TestRabbitMQ shares one server between all subtests, because it starts slowly. It is part of
// `make test-brokers`, not of `make test`.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	certs, port := newCertificates(t), freePort(t)
	broker := rabbitmqtest.Start(t, "max_message_size = 100000", "listeners.ssl.1 = 127.0.0.1:"+port,
		"ssl_options.cacertfile = "+certs.ca, "ssl_options.certfile = "+certs.serverCert, "ssl_options.keyfile = "+certs.serverKey,
		"ssl_options.verify = verify_peer", "ssl_options.fail_if_no_peer_cert = true")
	t.Run("everything arrives over a stop", func(t *testing.T) {
		consumed := consumeAMQP(t, amqp.NewDurableQueueConfig(broker.URL()), topic)
		relaysOverAStop(t, start, consumed, []string{"REDISDELAY_AMQP_PASSWORD_FILE=" + file(t, "guest\n")},
			"--to", "amqp", "--amqp", "amqp://"+broker.Addr(), "--amqp-username", "guest")
	})
	t.Run("a password alone is that of guest", func(t *testing.T) {
		to, err := reading(t, []string{"REDISDELAY_AMQP_PASSWORD=guest"}, "--amqp", "amqp://"+broker.Addr()+"/%2f", "--amqp-vhost", "/").kinds["amqp"].open(1, quiet())
		require.NoError(t, err)
		defer to.Close()
		require.NoError(t, to.check(t.Context()))
	})
	t.Run("nothing is dropped", func(t *testing.T) { dropsNothing(t, broker) })
	t.Run("TLS", func(t *testing.T) { connectsByTLS(t, certs, port) })
	t.Run("it may go and come back", func(t *testing.T) { goesAndComesBack(t, broker) })
}

// When RabbitMQ is short of memory, it reads nothing from publishers, not even a request to close.
func TestRabbitMQThatBlocksPublishers(t *testing.T) {
	t.Parallel()
	broker := rabbitmqtest.Start(t, "vm_memory_high_watermark.relative = 0.0")
	to := openAMQP(t, broker)
	require.Eventually(t, func() bool {
		msg := message1()
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		msg.SetContext(short)
		return to.Publish("any", msg) != nil && to.check(t.Context()) != nil
	}, patience, time.Millisecond)
	require.ErrorContains(t, to.check(t.Context()), "the broker blocks publishers: low on memory")

	store := redistest.Start(t)
	client := store.Client(t)
	p := startRelay(t, start, store, []string{"REDISDELAY_AMQP=" + broker.URL()}, "--to", "amqp", "--ordered", "--health", "127.0.0.1:0",
		"--stop-timeout", "10s")
	publishOrders(t, client, topic, 5, time.Millisecond)
	require.Equal(t, "low on memory", p.await(`msg="The broker blocks publishers, waiting" reason="(.*)"`))
	p.awaitUnready("low on memory")
	p.stop()
	require.Zero(t, inHand(t, store), "nothing has to wait for its lease to run out")
	require.EqualValues(t, 5, client.LLen(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:ready:"+relay.DefaultConsumerGroup).Val())

	began := time.Now()
	require.NoError(t, to.Publisher.Close())
	require.Less(t, time.Since(began), 10*time.Second)
}

func consumeAMQP(t *testing.T, config amqp.Config, topic string) *consumer {
	t.Helper()
	config.Consume.Qos.PrefetchCount = 100
	subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	require.NoError(t, err)
	return consume(t, subscriber, topic)
}

// openAMQP opens the destination of --to amqp with these flags.
func openAMQP(t *testing.T, broker *rabbitmqtest.Server, args ...string) *destination {
	t.Helper()
	to, err := reading(t, []string{"REDISDELAY_AMQP=" + broker.URL()}, args...).kinds["amqp"].open(10, quiet())
	require.NoError(t, err)
	t.Cleanup(func() { _ = to.Close() })
	return to
}

func message1() *message.Message { return message.NewMessage("1", []byte("x")) }

// dropsNothing checks messages without a queue, which RabbitMQ confirms and drops.
func dropsNothing(t *testing.T, broker *rabbitmqtest.Server) {
	connection, err := amqp091.Dial(broker.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	count := func(queue string) int {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(t, err)
		return q.Messages
	}
	declare := func(queue string) {
		_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
		require.NoError(t, err)
	}
	bind := func(queue, key, exchange string) {
		declare(queue)
		require.NoError(t, channel.QueueBind(queue, key, exchange, false, nil))
	}

	t.Run("a queue that somebody deletes", func(t *testing.T) {
		to := openAMQP(t, broker)
		require.NoError(t, to.Publish("deleted", message1()))
		_, err := channel.QueueDelete("deleted", false, false, false)
		require.NoError(t, err)
		err = to.Publish("deleted", message1(), message1())
		require.ErrorIs(t, err, errUnrouted)
		require.False(t, to.permanent(err))
		require.NoError(t, to.Publish("deleted", message1(), message1()), "it is declared again")
		require.Equal(t, 2, count("deleted"))
	})
	t.Run("a queue that has to be there", func(t *testing.T) {
		to := openAMQP(t, broker, "--amqp-declare=false")
		require.ErrorIs(t, to.Publish("missing", message1()), errUnrouted)
		declare("missing")
		require.NoError(t, to.Publish("missing", message1()))
		require.Equal(t, 1, count("missing"))
	})
	t.Run("an exchange for each topic", func(t *testing.T) {
		to := openAMQP(t, broker, "--amqp-exchange-kind", "fanout")
		require.ErrorIs(t, to.Publish("news", message1()), errUnrouted)
		bind("news-a", "", "news")
		bind("news-b", "", "news")
		require.NoError(t, to.Publish("news", message1()))
		require.Equal(t, []int{1, 1}, []int{count("news-a"), count("news-b")})
	})
	t.Run("one exchange", func(t *testing.T) {
		to := openAMQP(t, broker, "--amqp-exchange-kind", "topic", "--amqp-exchange", "all")
		require.ErrorIs(t, to.Publish("orders.paid", message1()), errUnrouted)
		bind("paid", "*.paid", "all")
		require.NoError(t, to.Publish("orders.paid", message1()))
		require.ErrorIs(t, to.Publish("orders.new", message1()), errUnrouted)
		require.NoError(t, to.Publish("\xff.paid", message1()), "a routing key may be anything")
		require.NoError(t, to.Publish("\n.paid", message1()))
		require.Equal(t, 3, count("paid"))
	})
	t.Run("an exchange that is not there", func(t *testing.T) {
		to := openAMQP(t, broker, "--amqp-exchange-kind", "direct", "--amqp-exchange", "none", "--amqp-declare=false")
		err := to.Publish(topic, message1())
		require.ErrorContains(t, err, "no exchange 'none'")
		require.False(t, to.permanent(err))
	})
	t.Run("what cannot be sent", func(t *testing.T) {
		to := openAMQP(t, broker)
		connected, err := to.Publisher.(*amqpPublisher).connected(t.Context())
		require.NoError(t, err)
		long := strings.Repeat("x", 256)
		key, metadata, large := message1(), message1(), message1()
		key.Metadata.Set(long, "")
		metadata.Metadata.Set("x", strings.Repeat("x", 200_000))
		large.Payload = make([]byte, 100_001)
		withKey := func(key string) *message.Message {
			msg := message1()
			msg.Metadata.Set(key, "bob@example.com")
			return msg
		}
		for name, refused := range map[string]func() error{
			"topic":    func() error { return to.Publish(long, message1()) },
			"key":      func() error { return to.Publish("sent", key) },
			"metadata": func() error { return to.Publish("sent", metadata) },
			"payload":  func() error { return to.Publish("sent", message1(), large, message1()) },
			"CC":       func() error { return to.Publish("sent", withKey("CC")) },
			"BCC":      func() error { return to.Publish("sent", withKey("BCC")) },
			"UTF-8":    func() error { return to.Publish("a\xffb", message1()) },
			"line":     func() error { return to.Publish("a\nb", message1()) },
			"exchange": func() error {
				return openAMQP(t, broker, "--amqp-exchange-kind", "fanout").Publish("a\xffb", message1())
			},
		} {
			err := refused()
			require.Error(t, err, name)
			require.True(t, to.permanent(err), "%s: %v", name, err)
		}
		require.NoError(t, to.Publish("sent", message1(), withKey("cc")))
		require.False(t, connected.IsClosed(), "it is that of all topics")
	})
	t.Run("many at once", func(t *testing.T) {
		to := openAMQP(t, broker)
		var publishing sync.WaitGroup
		for i := range 8 {
			publishing.Go(func() {
				for range 20 {
					var batch []*message.Message
					for range 25 { // more than go together
						batch = append(batch, message1())
					}
					if err := to.Publish(fmt.Sprint("many", i%2), batch...); err != nil {
						t.Error(err)
					}
				}
			})
		}
		publishing.Wait()
		require.Equal(t, []int{2000, 2000}, []int{count("many0"), count("many1")})
	})
}

func goesAndComesBack(t *testing.T, broker *rabbitmqtest.Server) {
	store := redistest.Start(t)
	p := startRelay(t, start, store, []string{"REDISDELAY_AMQP=" + broker.URL()}, "--to", "amqp", "--health", "127.0.0.1:0", "--backoff", "20ms..1s")
	p.awaitProbe("/readyz", http.StatusOK)
	before := publishOrders(t, store.Client(t), "orders", 100, 10*time.Millisecond)
	require.Eventually(t, func() bool { return inHand(t, store) == 0 && bodies(t, store) == 0 }, patience, 5*time.Millisecond)

	broker.Kill()
	p.awaitUnready("connect to the broker")
	publisherOrders := publishOrders(t, store.Client(t), "orders", 100, 10*time.Millisecond)
	p.await("The destination fails to take messages")
	broker.Restart()
	p.awaitProbe("/readyz", http.StatusOK)
	require.Eventually(t, func() bool { return bodies(t, store) == 0 }, patience, 5*time.Millisecond)
	p.stop()
	require.NotContains(t, p.said(), "guest:")

	consumed := consumeAMQP(t, amqp.NewDurableQueueConfig(broker.URL()), topic)
	came := consumed.await(t, 200)
	uuids := map[string]int{}
	for _, a := range came {
		uuids[a.uuid]++
	}
	require.Len(t, uuids, len(before))
	for uuid := range publisherOrders {
		require.Equal(t, 2, uuids[uuid], "one before, and one after")
	}
}

func connectsByTLS(t *testing.T, certs certificates, port string) {
	client := []string{"--amqp-tls-cert", certs.clientCert, "--amqp-tls-key", certs.clientKey}
	trusting := append(client[:4:4], "--amqp-tls-ca", certs.ca)
	for name, c := range map[string]struct {
		url, password string
		args          []string
		refused       string
	}{
		"amqps":            {"amqps://127.0.0.1:" + port, "guest", append(trusting[:6:6], "--amqp-tls-server-name", certifiedName), ""},
		"amqp-tls":         {"amqp://127.0.0.1:" + port, "guest", append(trusting[:6:6], "--amqp-tls", "--amqp-tls-server-name", certifiedName), ""},
		"insecure":         {"amqps://127.0.0.1:" + port, "guest", append(client[:4:4], "--amqp-tls-insecure"), ""},
		"another name":     {"amqps://127.0.0.1:" + port, "guest", trusting, "certificate"},
		"wrong password":   {"amqps://127.0.0.1:" + port, "hunter2", append(trusting[:6:6], "--amqp-tls-server-name", certifiedName), "username or password not allowed"},
		"no certificate":   {"amqps://127.0.0.1:" + port, "guest", []string{"--amqp-tls-ca", certs.ca, "--amqp-tls-server-name", certifiedName}, "connect to the broker"},
		"without TLS":      {"amqp://127.0.0.1:" + port, "guest", nil, "connect to the broker"},
		"unknown vhost":    {"amqps://127.0.0.1:" + port + "/none", "guest", append(trusting[:6:6], "--amqp-tls-server-name", certifiedName), "vhost none not found"},
		"vhost by setting": {"amqps://127.0.0.1:" + port, "guest", append(trusting[:6:6], "--amqp-tls-server-name", certifiedName, "--amqp-vhost", "none"), "vhost none not found"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--amqp", c.url, "--amqp-username", "guest"}, c.args...)
			to, err := reading(t, []string{"REDISDELAY_AMQP_PASSWORD=" + c.password}, args...).kinds["amqp"].open(1, quiet())
			require.NoError(t, err)
			defer to.Close()
			err = to.Publish("by TLS", message1())
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.refused)
			require.False(t, to.permanent(err))
			require.NotContains(t, err.Error(), "hunter")
		})
	}
}
