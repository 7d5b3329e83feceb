package partition_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

const topic = "orders"

func newPublisher(t testing.TB, s redistest.Server, partitions int, change ...func(*partition.PublisherConfig)) *partition.Publisher {
	t.Helper()
	config := partition.PublisherConfig{Partitions: partitions,
		Publisher: redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}}
	for _, f := range change {
		f(&config)
	}
	p, err := partition.NewPublisher(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func newMessage(payload, key string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	if key != "" {
		partition.SetKey(msg, key)
	}
	return msg
}

// counts returns how many messages each partition has.
func counts(t testing.TB, s redistest.Server, partitions int) (all []int) {
	t.Helper()
	for _, name := range topics(t, topic, partitions) {
		n, err := s.Client.HLen(context.Background(), queue.NewKeys(s.Prefix, name).Messages()).Result()
		require.NoError(t, err)
		all = append(all, int(n))
	}
	return all
}

// placeOf returns the partition of a key.
func placeOf(t testing.TB, key string, partitions int) int {
	t.Helper()
	name, err := partition.TopicOf(topic, partitions, key)
	require.NoError(t, err)
	_, i, ok := partition.Parse(name)
	require.True(t, ok)
	return i
}

func TestMessagesGoToThePartitionOfTheirKey(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 5
		p := newPublisher(t, s, n, func(c *partition.PublisherConfig) {
			c.KeyFunc = func(topic string, msg *message.Message) string { return msg.Metadata[topic] }
		})
		want := make([]int, n)
		for i := range 20 {
			key := fmt.Sprint("key", i)
			byKey, byFunc, byID := newMessage("", key), newMessage("", ""), newMessage("", "")
			byKey.Metadata.Set(topic, "not this one")
			byFunc.Metadata.Set(topic, key)
			byFunc.Metadata.Set(redisdelay.DelayIDKey, fmt.Sprint("not this one", i))
			byID.Metadata.Set(redisdelay.DelayIDKey, key)
			require.NoError(t, p.Publish(topic, byKey, byFunc, byID))
			want[placeOf(t, key, n)] += 3
		}
		require.Equal(t, want, counts(t, s, n))
	})
}

func TestMessagesWithoutKeyStayTogether(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n, each = 4, 33 // the calls that stay together have at least 32 messages
		p := newPublisher(t, s, n)
		for i := range n * each / 3 {
			require.NoError(t, p.Publish(topic, newMessage("", ""), newMessage("", ""), newMessage("", "")))
			full := 0
			for _, c := range counts(t, s, n) {
				if c != 0 && c != each {
					require.Equal(t, (i+1)*3%each, c, "they stay together")
				}
				if c == each {
					full++
				}
			}
			require.Equal(t, (i+1)*3/each, full, "they go round")
		}

		require.NoError(t, p.Publish(topic, newMessage("", ""), newMessage("", "key"), newMessage("", "")))
		want := []int{each, each, each, each}
		want[placeOf(t, "key", n)] += 3
		require.Equal(t, want, counts(t, s, n), "they go with the message that has a key")
	})
}

func TestAMessageThatIsRefusedKeepsTheWholeCallBack(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 3
		p := newPublisher(t, s, n)
		good := messagesForAll(t, n)
		bad := newMessage("", "x")
		bad.Metadata.Set(redisdelay.DelayKey, "soon")
		err := p.Publish(topic, append(good, bad)...)
		require.ErrorIs(t, err, redisdelay.ErrInvalidDelay)
		var partial *partition.PublishError
		require.False(t, errors.As(err, &partial))
		require.ErrorIs(t, p.Publish(topic, append(good, nil)...), redisdelay.ErrNilMessage)
		require.Equal(t, make([]int, n), counts(t, s, n))

		require.ErrorIs(t, p.Publish("", good...), redisdelay.ErrInvalidTopic)
		require.NoError(t, p.Publish(topic))
		require.NoError(t, p.Publish(topic, good...), "the call can be repeated")
		require.Equal(t, []int{1, 1, 1}, counts(t, s, n))
	})
}

// messagesForAll returns one message for each partition, in the order of the partitions.
func messagesForAll(t testing.TB, partitions int) []*message.Message {
	t.Helper()
	all := make([]*message.Message, partitions)
	for i, found := 0, 0; found < partitions; i++ {
		key := fmt.Sprint("key", i)
		if at := placeOf(t, key, partitions); all[at] == nil {
			all[at] = newMessage(fmt.Sprint(at), key)
			found++
		}
	}
	return all
}

func TestTheErrorSaysWhichMessagesAreIn(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n = 4
		p := newPublisher(t, s, n)
		broken := queue.NewKeys(s.Prefix, topics(t, topic, n)[2]).Messages()
		require.NoError(t, s.Client.Set(context.Background(), broken, "no hash", 0).Err())
		all := messagesForAll(t, n)
		err := p.Publish(topic, all...)
		var partial *partition.PublishError
		require.ErrorAs(t, err, &partial)
		require.Equal(t, []*message.Message{all[0], all[1], all[3]}, partial.Published)
		require.Equal(t, []*message.Message{all[2]}, partial.Failed)
		require.Equal(t, topic, partial.Topic)
		require.Len(t, partial.Parts, n)
		for _, part := range partial.Parts {
			require.Equal(t, topics(t, topic, n)[part.Partition], part.Topic)
			require.Equal(t, part.Partition == 2, part.Err != nil)
		}
		require.ErrorContains(t, err, `1 of 4 messages are not known to be published, in 1 of 4 partitions`)

		require.NoError(t, s.Client.Del(context.Background(), broken).Err())
		require.NoError(t, p.Publish(topic, partial.Failed...))
		require.Equal(t, []int{1, 1, 1, 1}, counts(t, s, n))
	})
}

func TestErrorsOfPartsAreFound(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, 3, func(c *partition.PublisherConfig) { c.Publisher.MaxWaiting = 1 })
		all := messagesForAll(t, 3)
		require.NoError(t, p.Publish(topic, all...))
		require.ErrorIs(t, p.Publish(topic, all[1]), redisdelay.ErrTopicFull)
		require.ErrorIs(t, p.Publish(topic, all...), redisdelay.ErrTopicFull)
	})
}

func TestAKeyFuncThatFailsCostsItsCallOnly(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		fails := func() { panic("odd") }
		p := newPublisher(t, s, 3, func(c *partition.PublisherConfig) {
			c.KeyFunc = func(string, *message.Message) string { fails(); return "" }
		})
		require.ErrorContains(t, p.Publish(topic, newMessage("", "")), "KeyFunc panicked: odd")
		fails = runtime.Goexit
		require.ErrorContains(t, p.Publish(topic, newMessage("", "")), "KeyFunc called runtime.Goexit")
		require.Equal(t, []int{0, 0, 0}, counts(t, s, 3))
		fails = func() {}
		require.NoError(t, p.Publish(topic, newMessage("", "")))
	})
}

// A context is the user's code. In a part's goroutine it must not end the process.
type odd struct{ context.Context }

func (odd) Done() <-chan struct{} { panic("odd") }

func TestAContextThatPanicsEndsItsPartOnly(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, 3)
		all := messagesForAll(t, 3)
		all[1].SetContext(odd{context.Background()})
		err := p.Publish(topic, all...)
		if err != nil { // the root asks for Done only if the call has to wait
			require.ErrorContains(t, err, "the context of a message panicked: odd")
			return
		}
		require.Equal(t, []int{1, 1, 1}, counts(t, s, 3))
	})
}

// Concurrent callers share calls to Redis as they do on one topic.
func TestConcurrentCallsWithoutKeySpreadAndStayTogether(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		const n, callers, each = 3, 50, 120
		p := newPublisher(t, s, n)
		var callersDone sync.WaitGroup
		for range callers {
			callersDone.Go(func() {
				for range each {
					if err := p.Publish(topic, newMessage("", "")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callersDone.Wait()
		sum := 0
		for i, c := range counts(t, s, n) {
			require.GreaterOrEqual(t, c, 32, "partition %d", i) // they move on after 32 to 1,000
			sum += c
		}
		require.Equal(t, callers*each, sum)
	})
}

func TestPublisherConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := partition.NewPublisher(partition.PublisherConfig{Partitions: -1, Publisher: redisdelay.PublisherConfig{MaxWaiting: -1}}, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	for _, field := range []string{"Partitions", "Client", "MaxWaiting"} {
		require.ErrorContains(t, err, field)
	}
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for n, ok := range map[int]bool{-1: false, 0: true, 1: true, partition.MaxPartitions: true, partition.MaxPartitions + 1: false} {
		err := partition.PublisherConfig{Partitions: n, Publisher: redisdelay.PublisherConfig{Client: client}}.Validate()
		require.Equal(t, ok, err == nil, "%d partitions: %v", n, err)
	}
}

func TestAClosedPublisherRefusesCalls(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s, 3)
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Publish(topic, newMessage("", "")), redisdelay.ErrClosed)
		require.ErrorIs(t, p.Publish(topic, messagesForAll(t, 3)...), redisdelay.ErrClosed)
	})
}
