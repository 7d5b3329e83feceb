package redisdelay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// lanes is how many subscriptions a topic's only Subscribe was for Redis, as far as that remembers
// claims of them.
func lanes(t *testing.T, s redistest.Server, topic string) int {
	t.Helper()
	keys, err := s.Client.Keys(ctx, fmt.Sprintf("%s:{%s}:claim:*", s.Prefix, topic)).Result()
	require.NoError(t, err)
	return len(keys)
}

// Messages that two claims bring at the same time come once, also where the answers are lost again
// and again.
func TestEachMessageComesOnceUnderLoad(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		network := newProxy(t, s)
		register(t, s, "t")
		want := numbered(0, 6000)
		publish(t, newPublisher(t, s), "t", want...)
		messages := subscribe(t, s, "t", through(network.client(t)), leaseOf(10*time.Minute), inFlight(256))
		got, most := []string{}, 0
		for i := range want {
			if i%500 == 250 {
				network.loseReplies(1+i/500%5, ":claim:", func() {}) // of four in a row the client tells
				most = max(most, lanes(t, s, "t"))
			}
			msg := receive(t, messages)
			require.False(t, deliveryOf(t, msg).Redelivered)
			got = append(got, string(msg.Payload))
			require.True(t, msg.Ack())
		}
		requireSame(t, want, got)
		require.Equal(t, 2, most)
	})
}

// With one message in hand at a time the order counts, so one claim is made after the other.
func TestNothingIsClaimedAheadInOrder(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		register(t, s, "t")
		want := numbered(0, 3000)
		publish(t, newPublisher(t, s), "t", want...)
		messages := subscribe(t, s, "t")
		for i := range want {
			require.Equal(t, want[i:i+1], consume(t, messages, 1))
			if i%500 == 250 {
				require.Equal(t, 1, lanes(t, s, "t"))
			}
		}
	})
}

// Claims and acks may be under way when Close is called.
func TestCloseUnderLoadGivesBackTheMessagesNotHandedOut(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		const all = 2000
		p := newPublisher(t, s)
		for i := range 12 {
			topic := fmt.Sprint("t", i)
			register(t, s, topic)
			publish(t, p, topic, numbered(0, all)...)
			sub := newSubscriber(t, s, leaseOf(never), inFlight(256), closingWithin(20*time.Second))
			messages := subscribeTo(t, sub, topic)
			taken := 400 + 93*i
			got := consume(t, messages, taken)
			require.NoError(t, sub.Close())
			for msg := range messages { // one may have been taken before
				got = append(got, string(msg.Payload))
				require.True(t, msg.Ack())
			}
			left := int64(all - len(got))
			require.Equal(t, state{Bodies: left, Ready: left}, stateOf(t, s, topic))
			again := newSubscriber(t, s, inFlight(256))
			got = append(got, consume(t, subscribeTo(t, again, topic), int(left))...)
			requireSame(t, numbered(0, all), got)
			require.NoError(t, again.Close())
		}
	})
}
