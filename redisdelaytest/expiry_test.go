package redisdelaytest_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// expiring returns a message that expires some time after it is due.
func expiring(uuid string, lateness time.Duration, then redisdelay.OnExpiry) *message.Message {
	msg := delayed(uuid, 0)
	redisdelay.ExpireAfter(msg, lateness, then)
	return msg
}

// inHand waits until n messages are claimed. They are buffered or offered, because the test does
// not read.
func inHand(t *testing.T, s *redisdelaytest.Server, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return group(t, s).InHand == n }, 10*time.Second, time.Millisecond)
}

func group(t *testing.T, s *redisdelaytest.Server) admin.GroupStats {
	t.Helper()
	stats, err := s.Admin().Stats(ctx, topic)
	require.NoError(t, err)
	return stats.Groups[0]
}

func none(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg := <-messages:
		require.Fail(t, "it is too late for it", msg.UUID)
	default:
	}
}

// The consumer does not read while the clock moves. After Advance it gets all messages that have
// not expired, and no others.
func TestAdvanceExpiresOfferedMessages(t *testing.T) {
	for _, then := range []redisdelay.OnExpiry{redisdelay.ExpiryDrop, redisdelay.ExpiryDead} {
		t.Run(string(then), func(t *testing.T) {
			s := start(t)
			messages, _ := subscribe(t, s)
			p := publisher(t, s)
			for range 20 {
				require.NoError(t, p.Publish(topic, expiring("x", time.Hour, then)))
				inHand(t, s, 1)
				s.Advance(time.Hour - time.Second)
				msg := s.Receive(t, messages)
				require.True(t, msg.Ack())
				require.NoError(t, p.Publish(topic, expiring("y", time.Hour, then)))
				inHand(t, s, 1)
				s.Advance(time.Hour)
				none(t, messages)
				s.AwaitDrained(t, topic)
				none(t, messages)
			}
			g := group(t, s)
			require.Equal(t, 20, g.Counters.Delivered)
			require.Equal(t, 20, g.Counters.Dropped+g.Dead)
			require.Equal(t, then == redisdelay.ExpiryDrop, g.Counters.Dropped == 20)
		})
	}
}

// One message is offered, others are claimed behind it.
func TestAdvanceExpiresMessagesClaimedAhead(t *testing.T) {
	s := start(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client(), MaxInFlight: 5}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	p := publisher(t, s)
	for range 10 {
		require.NoError(t, p.Publish(topic,
			expiring("too late 1", time.Minute, redisdelay.ExpiryDrop), expiring("in time 1", time.Hour, redisdelay.ExpiryDrop),
			expiring("too late 2", time.Minute, redisdelay.ExpiryDrop), expiring("in time 2", time.Hour, redisdelay.ExpiryDrop)))
		s.Advance(10 * time.Minute)
		for _, want := range []string{"in time 1", "in time 2"} {
			msg := s.Receive(t, messages)
			require.Equal(t, want, msg.UUID)
			require.True(t, msg.Ack())
		}
		s.AwaitDrained(t, topic)
		none(t, messages)
	}
	require.Equal(t, 20, group(t, s).Counters.Dropped)
}

func TestRealTimeExpiresNoMessage(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	const lateness = 300 * time.Millisecond
	require.NoError(t, publisher(t, s).Publish(topic, expiring("x", lateness, redisdelay.ExpiryDrop)))
	inHand(t, s, 1)
	for slow := time.Now(); time.Since(slow) < lateness*5/4; { // which a clock that ran would count
		require.Equal(t, 1, group(t, s).InHand)
	}
	s.Advance(lateness / 10)
	msg := s.Receive(t, messages)
	require.Equal(t, "x", msg.UUID)
	msg.Ack()
	s.AwaitDrained(t, topic)
	require.Zero(t, group(t, s).Counters.Dropped)
}

func TestAdvanceDoesNotWaitForClosingSubscriptions(t *testing.T) {
	s := start(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client(), CloseTimeout: time.Minute}, nil)
	require.NoError(t, err)
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, s).Publish(topic, delayed("x", 0)))
	msg := s.Receive(t, messages)
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	s.Advance(time.Hour)
	require.NoError(t, msg.Context().Err(), "it is handled still")
	s.Advance(time.Hour)
	msg.Ack()
	require.NoError(t, <-closed)
	s.Advance(time.Hour)
}

// A message that expires during a pause is not delivered after it.
func TestMessagesExpireDuringAPause(t *testing.T) {
	s := start(t)
	messages, _ := subscribe(t, s)
	p := publisher(t, s)
	require.NoError(t, p.Publish(topic, expiring("on offer", time.Hour, redisdelay.ExpiryDrop)))
	inHand(t, s, 1)
	_, err := s.Admin().Pause(ctx, topic, admin.PauseOptions{})
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, expiring("dropped", time.Hour, redisdelay.ExpiryDrop),
		expiring("dead", time.Hour, redisdelay.ExpiryDead), expiring("in time", 3*time.Hour, redisdelay.ExpiryDrop)))
	s.Advance(2 * time.Hour)
	none(t, messages)
	require.Eventually(t, func() bool { return group(t, s).InHand == 0 }, 10*time.Second, time.Millisecond, "it was on offer, and is dropped in the pause")
	require.Equal(t, 3, group(t, s).Ready, "nobody asks for them, so they stay")

	_, err = s.Admin().Resume(ctx, topic, admin.ResumeOptions{})
	require.NoError(t, err)
	msg := s.Receive(t, messages)
	require.Equal(t, "in time", msg.UUID)
	msg.Ack()
	s.AwaitDrained(t, topic)
	require.Equal(t, 2, group(t, s).Counters.Dropped)
	require.Equal(t, 1, group(t, s).Dead)
	page, err := s.Admin().List(ctx, topic, admin.Query{State: admin.Dead})
	require.NoError(t, err)
	require.Equal(t, "dead", page.Messages[0].UUID)
	require.Zero(t, page.Messages[0].Places[0].Deliveries, "nobody got it")
}
