package tests

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// In ordered mode messages come in the order of publishing, each again at once when it was nacked,
// and whoever comes next goes on where the last one stopped, whatever replies of Redis are lost.
func TestOrderHoldsOverNacksRestartsAndLostReplies(t *testing.T) {
	for name, delay := range map[string]time.Duration{"now": 0, "delayed": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) { keepsOrder(t, s, delay, 1500) })
		})
	}
}

func keepsOrder(t *testing.T, s redistest.Server, delay time.Duration, count int) {
	config := redisdelay.SubscriberConfig{
		KeyPrefix:     s.Prefix,
		MaxDeliveries: -1,
		Backoff:       func(int) time.Duration { return 0 },
	}
	address := s.Client.(*redis.Client).Options().Addr

	publisher := newPublisher(t, s)
	config.Client = s.Client
	first, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(t, err)
	require.NoError(t, first.SubscribeInitialize("t"))
	for i := 0; i < count; {
		var batch []*message.Message
		for range min(1+rand.IntN(30), count-i) {
			msg := message.NewMessage(strconv.Itoa(i), nil)
			redisdelay.DelayFor(msg, delay)
			batch = append(batch, msg)
			i++
		}
		require.NoError(t, publisher.Publish("t", batch...))
	}

	next := 0
	for next < count {
		client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: 1})
		client.AddHook(redistest.Hook(losingReplies))
		config.Client = client
		subscriber, err := redisdelay.NewSubscriber(config, nil)
		require.NoError(t, err)
		messages, err := subscriber.Subscribe(t.Context(), "t")
		if err == nil {
			closed := make(chan error, 1)
			stop := next + 1 + rand.IntN(count/3)
			for msg := range messages {
				require.Equal(t, strconv.Itoa(next), msg.UUID)
				if rand.IntN(10) == 0 {
					msg.Nack()
					continue
				}
				if next == stop {
					go func() { closed <- subscriber.Close() }()
				}
				msg.Ack()
				if next++; next == count {
					go func() { closed <- subscriber.Close() }()
				}
			}
			require.NoError(t, <-closed)
		}
		require.NoError(t, client.Close())
	}
}

var errReplyLost = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("the reply was lost")}

func lost() bool { return rand.IntN(16) == 0 }

// losingReplies is a network that loses the reply to a call now and then, after the call was made.
func losingReplies(_ context.Context, _ []redis.Cmder, next func() error) error {
	err := next()
	if lost() {
		return errReplyLost
	}
	return err
}
