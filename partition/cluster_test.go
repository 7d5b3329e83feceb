package partition_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// TestANodeThatHangsHoldsBackItsPartitionsOnly is about claims that get no answer: they must not
// keep places of the common budget.
func TestANodeThatHangsHoldsBackItsPartitionsOnly(t *testing.T) {
	t.Parallel()
	const n, each = 6, 20
	c := redistest.StartCluster(t, "--cluster-node-timeout", "60000")
	s := redistest.On(t, c.Client(t), "redisdelay")
	p := newPublisher(t, s, n)
	sub := newSubscriber(t, s, n, func(c *partition.SubscriberConfig) { c.Subscriber.CloseTimeout = 2 * time.Second })
	all := messagesForAll(t, n)
	hangs := c.Primaries[0]
	good := map[string]int{} // payload -> messages to come
	for i, name := range topics(t, topic, n) {
		if owner, _ := c.Owner("{" + name + "}"); owner != hangs {
			good[string(all[i].Payload)] = each
		}
	}
	require.Len(t, good, n*2/3, "the partitions spread over the nodes")
	require.NoError(t, sub.SubscribeInitialize(topic))
	for range each {
		require.NoError(t, p.Publish(topic, all...))
	}
	messages := testkit.SubscribeTo(t, sub, topic)
	receive := func() {
		msg := testkit.Receive(t, messages)
		switch payload := string(msg.Payload); good[payload] {
		case 0: // of the node that hangs, or a second delivery
		case 1:
			delete(good, payload)
		default:
			good[payload]--
		}
		time.Sleep(time.Millisecond) // the work
		msg.Ack()
	}
	for range 2 * n { // each partition has more messages, and wants places
		receive()
	}
	hangs.Pause()
	defer hangs.Resume()
	began := time.Now()
	for len(good) > 0 {
		receive()
	}
	require.Less(t, time.Since(began), 10*time.Second)
	hangs.Resume()
	require.NoError(t, p.Publish(topic, all...))
	go func() {
		for msg := range messages {
			msg.Ack()
		}
	}()
	for _, name := range topics(t, topic, n) {
		testkit.AwaitEmpty(t, s, name) // all goes on
	}
}
