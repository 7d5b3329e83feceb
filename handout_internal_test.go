package redisdelay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// handingOut is a subscription with two messages, of which the consumer has taken the first, and not the second. It takes
// so long for a message. It has to be called in a bubble.
func handingOut(t *testing.T, pace time.Duration) (s *subscription, first *message.Message, end func()) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which nothing is sent to
	subscriber, err := NewSubscriber(SubscriberConfig{Client: client, MaxInFlight: 2}, nil)
	require.NoError(t, err)
	subscriber.running = &engine{}
	s = newSubscription(subscriber, t.Context(), queue.NewTopic(queue.MustClient(client), DefaultKeyPrefix, "t"), "id")
	for _, id := range []string{"1", "2"} {
		body, err := BinaryMarshaler{}.Marshal("t", message.NewMessage(id, nil))
		require.NoError(t, err)
		s.leases(queue.Leased{ID: id, Token: id, Body: body}, time.Now())
	}
	s.pace.observe(pace)
	go s.handOut()
	first = <-s.out
	require.Equal(t, "1", first.UUID)
	synctest.Wait()
	return s, first, func() {
		s.close()
		synctest.Wait()
		require.True(t, s.handOver)
		require.False(t, s.looker.Stop(), "it runs on")
		first.Ack() // or it is awaited for CloseTimeout
		synctest.Wait()
		for _, timer := range s.endTimers {
			timer.Stop()
		}
		require.NoError(t, client.Close())
	}
}

func TestWhatIsSettledIsNoticedWhileAnotherIsOnOffer(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message) bool{
		"acked":  (*message.Message).Ack,
		"nacked": (*message.Message).Nack,
	} {
		for when, c := range map[string]struct{ pace, after, noticed time.Duration }{
			"at once":               {0, 0, soon},
			"later":                 {0, 2 * soon, 0}, // than it has been looked for
			"by a slow one at once": {2 * soon, 0, 0},
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s, first, end := handingOut(t, c.pace)
					defer end()
					time.Sleep(c.after)
					require.True(t, settle(first))
					time.Sleep(c.noticed)
					synctest.Wait()
					require.Equal(t, 1, len(s.settled.acks)+len(s.settled.nacks))
					require.Len(t, s.inHand, 1)
				})
			})
		}
	}
}

// An idle program is to be idle: nothing looks again and again while a handler runs.
func TestAHandlerThatRunsIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, end := handingOut(t, 0)
		defer end()
		require.True(t, s.looks.Load())
		time.Sleep(2 * soon)
		synctest.Wait()
		require.False(t, s.looks.Load())
	})
	synctest.Test(t, func(t *testing.T) {
		s, _, end := handingOut(t, 2*soon)
		defer end()
		require.False(t, s.looks.Load())
	})
}

func TestWhatIsOnOfferIsGivenBackWhenTheSubscriptionCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, end := handingOut(t, 0)
		require.Zero(t, s.buffer.len())
		end()
		require.Equal(t, 1, s.buffer.len())
	})
}

func TestWhatIsOnOfferIsWithdrawnWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, first, end := handingOut(t, 0)
		defer end()
		s.mu.Lock()
		s.abandon(s.inHand[1], ErrLeaseLost)
		s.mu.Unlock()
		synctest.Wait()
		select {
		case msg := <-s.out:
			require.Fail(t, "a message was handed over that is another's", msg.UUID)
		default:
		}
		require.True(t, first.Ack())
		synctest.Wait()
		require.Empty(t, s.inHand)
	})
}
