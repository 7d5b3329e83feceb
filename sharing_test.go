package redisdelay_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A message that a subscriber does not start is another's at once, with the configuration that is
// fast with a quick consumer, too.
func TestUnstartedMessagesGoToAnotherSubscriberAtOnce(t *testing.T) {
	const published, quick = 1500, 500
	for _, c := range []struct {
		name        string
		maxInFlight int
		takes, has  int // messages that the consumer takes, and has while it settles none
	}{
		{"unread, in order", 1, 0, 1},
		{"unread, many in flight", 256, 0, 1}, // it is on offer
		{"stuck, in order", 1, 1, 1},
		{"stuck, many in flight", 256, 1, 2},
		{"stuck, as many as may be", 256, 256, 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				stuck := subscribe(t, s, "t", leaseOf(never), inFlight(c.maxInFlight))
				publish(t, newPublisher(t, s), "t", numbered(0, published)...)
				got := consume(t, stuck, quick)
				var taken []*message.Message
				for range c.takes {
					taken = append(taken, receive(t, stuck))
				}
				other := newSubscriber(t, s, inFlight(c.maxInFlight))
				got = append(got, consumeFirst(t, subscribeTo(t, other, "t"), published-quick-c.has)...)
				require.NoError(t, other.Close())
				for _, msg := range taken {
					got = append(got, string(msg.Payload))
					require.True(t, msg.Ack())
				}
				got = append(got, consume(t, stuck, c.has-c.takes)...)
				requireEach(t, published, got)
				publish(t, newPublisher(t, s), "t", numbered(0, quick)...)
				requireEach(t, quick, consume(t, stuck, quick)) // it is not stuck any more
			})
		})
	}
}

func TestASlowSubscriberDoesNotHoldUpAnother(t *testing.T) {
	for _, maxInFlight := range []int{1, 256} {
		t.Run(strconv.Itoa(maxInFlight), func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				slow := subscribe(t, s, "t", leaseOf(never), inFlight(maxInFlight))
				publish(t, newPublisher(t, s), "t", numbered(0, 1500)...)
				got := consume(t, slow, 500) // quick at first
				other := subscribe(t, s, "t", inFlight(maxInFlight))
				for range 5 { // one in the time of others
					msg := receivePromptly(t, slow)
					got = append(append(got, string(msg.Payload)), consumeFirst(t, other, 150)...)
					require.True(t, msg.Ack())
				}
				got = append(got, consume(t, merged(t, slow, other), 1500-len(got))...)
				requireEach(t, 1500, got)
			})
		})
	}
}

func TestAnUnreadChannelHoldsOneMessageAtMost(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		sub := newSubscriber(t, s, leaseOf(never), inFlight(10))
		unread := subscribeTo(t, sub, "t")
		publish(t, newPublisher(t, s), "t", numbered(0, 50)...)
		eventually(t, func() bool { return stateOf(t, s, "t").InHand > 0 }, "messages are claimed")
		others := subscribe(t, s, "t")
		got := consume(t, others, 49)
		require.NoError(t, sub.Close())
		requireClosed(t, unread)
		require.ElementsMatch(t, numbered(0, 50), append(got, consume(t, others, 1)...))
	})
}

// consumeFirst consumes messages each of which comes promptly and for the first time.
func consumeFirst(t *testing.T, messages <-chan *message.Message, n int) []string {
	t.Helper()
	payloads := make([]string, 0, n)
	for range n {
		msg := receivePromptly(t, messages)
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		require.Equal(t, 1, delivery.Number)
		require.False(t, delivery.Redelivered)
		payloads = append(payloads, string(msg.Payload))
		require.True(t, msg.Ack())
	}
	return payloads
}

// receivePromptly receives a message before a subscription would look by itself, about five seconds
// after it has last asked. That covers lost wake-ups, and brings everything in the end.
func receivePromptly(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	began := time.Now()
	msg := receive(t, messages)
	require.Less(t, time.Since(began), 4*time.Second, "a poll may have brought it")
	return msg
}

// requireEach checks that each of n numbers came, and came once.
func requireEach(t *testing.T, n int, got []string) {
	t.Helper()
	want := numbered(0, n)
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)
}
