package partition_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func newSubscriber(t testing.TB, s redistest.Server, partitions int, change ...func(*partition.SubscriberConfig)) *partition.Subscriber {
	t.Helper()
	config := partition.SubscriberConfig{Partitions: partitions,
		Subscriber: redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, TakeoverWindow: -1}}
	for _, f := range change {
		f(&config)
	}
	sub, err := partition.NewSubscriber(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return sub
}

func inFlight(n int) func(*partition.SubscriberConfig) {
	return func(c *partition.SubscriberConfig) { c.Subscriber.MaxInFlight = n }
}

// payloads receives and acks n messages, and returns their payloads, sorted.
func payloads(t testing.TB, messages <-chan *message.Message, n int) []string {
	t.Helper()
	all := testkit.Consume(t, messages, n)
	slices.Sort(all)
	return all
}

func TestOneChannelBringsTheMessagesOfAllPartitions(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		testkit.Drained(t, s)
		const n = 6
		p, sub := newPublisher(t, s, n), newSubscriber(t, s, n, inFlight(3))
		require.NoError(t, sub.SubscribeInitialize(topic))
		all := messagesForAll(t, n)
		redisdelay.DelayFor(all[4], 100*time.Millisecond)
		require.NoError(t, p.Publish(topic, all...))
		messages := testkit.SubscribeTo(t, sub, topic)
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, payloads(t, messages, n))

		require.NoError(t, p.Publish(topic, all[2]))
		msg := testkit.Receive(t, messages)
		require.Equal(t, topics(t, topic, n)[2], testkit.DeliveryOf(t, msg).Topic)
		msg.Ack()
		require.NoError(t, sub.Close())
		_, open := <-messages
		require.False(t, open)
		_, err := sub.Subscribe(context.Background(), topic)
		require.ErrorIs(t, err, redisdelay.ErrClosed)
	})
}

// TestOneBudgetForAllPartitions is about a consumer that never has more than MaxInFlight messages,
// and gets as many from one partition if the others have none.
func TestOneBudgetForAllPartitions(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		testkit.Drained(t, s)
		const n, places = 4, 3
		p, sub := newPublisher(t, s, n), newSubscriber(t, s, n, inFlight(places))
		messages := testkit.SubscribeTo(t, sub, topic)
		for range 3 {
			require.NoError(t, p.Publish(topic, messagesForAll(t, n)...))
		}
		for range 3 * n / places {
			var held []*message.Message
			for range places {
				held = append(held, testkit.Receive(t, messages))
			}
			select {
			case <-messages:
				t.Fatal("more than MaxInFlight messages are in hand")
			case <-time.After(20 * time.Millisecond): // long enough for a message that would come
			}
			for _, msg := range held {
				msg.Ack()
			}
		}
		one := messagesForAll(t, n)[1]
		require.NoError(t, p.Publish(topic, one, one.Copy(), one.Copy()))
		var held []*message.Message
		for range places {
			held = append(held, testkit.Receive(t, messages))
		}
		for _, msg := range held {
			msg.Ack()
		}
	})
}

// TestPartitionMaxInFlight is about messages that were claimed in advance while places are free.
func TestPartitionMaxInFlight(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n, count = 4, 60
		p := newPublisher(t, s, n)
		sub := newSubscriber(t, s, n, inFlight(n), func(c *partition.SubscriberConfig) { c.PartitionMaxInFlight = 1 })
		messages := testkit.SubscribeTo(t, sub, topic)
		all := make([]*message.Message, count)
		for i := range all {
			all[i] = newMessage(fmt.Sprint(i), "key")
		}
		require.NoError(t, p.Publish(topic, all...))
		for i := range count {
			msg := testkit.Receive(t, messages)
			require.Equal(t, fmt.Sprint(i), string(msg.Payload))
			if i%10 == 9 {
				select {
				case <-messages:
					t.Fatal("more than PartitionMaxInFlight messages are in hand")
				case <-time.After(20 * time.Millisecond): // long enough for a message that would come
				}
			}
			msg.Ack()
		}
	})
}

// TestNoPartitionStarves is about one partition with a large backlog and a slow consumer.
func TestNoPartitionStarves(t *testing.T) {
	for _, places := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(places), func(t *testing.T) {
			testkit.Both(t, func(t *testing.T, s redistest.Server) {
				const n, backlog = 4, 400
				p, sub := newPublisher(t, s, n), newSubscriber(t, s, n, inFlight(places))
				all := messagesForAll(t, n)
				hot := make([]*message.Message, backlog)
				for i := range hot {
					hot[i] = newMessage("hot", all[0].Metadata[partition.KeyMetadata])
				}
				messages := testkit.SubscribeTo(t, sub, topic)
				require.NoError(t, p.Publish(topic, hot...))
				testkit.Receive(t, messages).Ack()
				require.NoError(t, p.Publish(topic, all[1:]...))
				others := 0
				for i := 1; others < n-1; i++ {
					require.Less(t, i, backlog/2, "messages of other partitions wait for the backlog")
					msg := testkit.Receive(t, messages)
					if string(msg.Payload) != "hot" {
						others++
					}
					time.Sleep(time.Millisecond)
					msg.Ack()
				}
			})
		})
	}
}

func TestMessagesOfAKeyKeepTheirOrder(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		testkit.Drained(t, s)
		const n, keys, each = 6, 12, 30
		p := newPublisher(t, s, n)
		sub := newSubscriber(t, s, n, inFlight(n), func(c *partition.SubscriberConfig) {
			c.PartitionMaxInFlight = 1
			c.Subscriber.Backoff = func(int) time.Duration { return 0 }
		})
		require.NoError(t, sub.SubscribeInitialize(topic))
		for i := range each {
			var batch []*message.Message
			for k := range keys {
				batch = append(batch, newMessage(fmt.Sprint(i), fmt.Sprint("key", k)))
			}
			require.NoError(t, p.Publish(topic, batch...))
		}
		messages := testkit.SubscribeTo(t, sub, topic)
		next := map[string]int{}
		var mu sync.Mutex
		var handlers sync.WaitGroup
		for range keys * each {
			msg := testkit.Receive(t, messages)
			key := msg.Metadata[partition.KeyMetadata]
			mu.Lock()
			require.Equal(t, fmt.Sprint(next[key]), string(msg.Payload), key)
			next[key]++
			mu.Unlock()
			handlers.Go(func() { msg.Ack() })
		}
		handlers.Wait()
	})
}

func TestGroupsAndBroadcast(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 3
		p := newPublisher(t, s, n)
		var channels []<-chan *message.Message
		for _, group := range []string{"a", "b", ""} {
			channels = append(channels, testkit.SubscribeTo(t, newSubscriber(t, s, n, inFlight(n), func(c *partition.SubscriberConfig) {
				c.Subscriber.ConsumerGroup = group
				c.Subscriber.Broadcast = group == ""
			}), topic))
		}
		require.NoError(t, p.Publish(topic, messagesForAll(t, n)...))
		for _, messages := range channels {
			require.Equal(t, []string{"0", "1", "2"}, payloads(t, messages, n))
		}
	})
}

func TestTheEndOfTheContextEndsASubscribe(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 4
		p, sub := newPublisher(t, s, n), newSubscriber(t, s, n, inFlight(n))
		ctx, cancel := context.WithCancel(context.Background())
		messages, err := sub.Subscribe(ctx, topic)
		require.NoError(t, err)
		require.NoError(t, p.Publish(topic, messagesForAll(t, n)...))
		msg := testkit.Receive(t, messages)
		cancel()
		require.NoError(t, msg.Context().Err())
		msg.Ack()
		left := n - 1
		for msg := range messages { // what was on offer; then it closes
			left--
			msg.Ack()
		}
		again := testkit.SubscribeTo(t, sub, topic)
		testkit.Consume(t, again, left)
	})
}

func TestSubscribeToAllPartitionsOrNone(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 4
		sub := newSubscriber(t, s, n, inFlight(2))
		broken := s.Prefix + ":{" + topics(t, topic, n)[2] + "}:groups"
		require.NoError(t, s.Client.Set(context.Background(), broken, "no hash", 0).Err())
		_, err := sub.Subscribe(context.Background(), topic)
		require.Error(t, err)
		require.Error(t, sub.SubscribeInitialize(topic))
		require.NoError(t, s.Client.Del(context.Background(), broken).Err())
		p := newPublisher(t, s, n)
		messages := testkit.SubscribeTo(t, sub, topic)
		require.NoError(t, p.Publish(topic, messagesForAll(t, n)...))
		testkit.Consume(t, messages, n)
		_, err = sub.Subscribe(context.Background(), "")
		require.ErrorIs(t, err, redisdelay.ErrInvalidTopic)
		require.ErrorIs(t, sub.SubscribeInitialize(""), redisdelay.ErrInvalidTopic)
	})
}

func TestSubscriberConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := partition.NewSubscriber(partition.SubscriberConfig{Partitions: -1, PartitionMaxInFlight: -1, Subscriber: redisdelay.SubscriberConfig{MaxDead: -1}}, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	for _, field := range []string{"Partitions", "PartitionMaxInFlight", "Client", "MaxDead"} {
		require.ErrorContains(t, err, field)
	}
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	_, err = partition.NewSubscriber(partition.SubscriberConfig{Partitions: 1, Subscriber: redisdelay.SubscriberConfig{Client: client}}, nil)
	require.NoError(t, err)
}

func TestASubscriberTellsOfPartitionsThatItDoesNotRead(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		logger := watermill.NewCaptureLogger()
		sub, err := partition.NewSubscriber(partition.SubscriberConfig{Partitions: 3,
			Subscriber: redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, TakeoverWindow: -1}}, logger)
		require.NoError(t, err)
		defer sub.Close()
		testkit.SubscribeTo(t, sub, topic)
		require.Empty(t, logger.Captured()[watermill.ErrorLogLevel])
		p := newPublisher(t, s, 5)
		require.NoError(t, p.Publish(topic, messagesForAll(t, 5)...))
		testkit.SubscribeTo(t, sub, topic)
		lines := logger.Captured()[watermill.ErrorLogLevel]
		require.Len(t, lines, 1)
		require.Equal(t, "The topic has partitions that this subscriber does not read", lines[0].Msg)
		require.ElementsMatch(t, topics(t, topic, 5)[3:], lines[0].Fields["unread"])
	})
}
