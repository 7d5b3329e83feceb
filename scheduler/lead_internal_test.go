package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

func TestPromotionStartsOneShortRoundTripBeforeItsEvent(t *testing.T) {
	t.Parallel()
	var l lead
	require.Equal(t, time.Second, l.startIn(time.Second), "no round trip is known")
	l.observe(5 * time.Millisecond)
	require.Equal(t, 995*time.Millisecond, l.startIn(time.Second))
	l.observe(2 * time.Millisecond)
	require.Equal(t, 998*time.Millisecond, l.startIn(time.Second))
	l.observe(time.Minute)
	require.InDelta(t, 998*time.Millisecond, l.startIn(time.Second), float64(200*time.Microsecond), "one slow round trip")
	for range 100 {
		l.observe(40 * time.Millisecond)
	}
	require.Equal(t, 960*time.Millisecond, l.startIn(time.Second), "all are slow now")
}

// A second promotion at once would usually arrive too early as well, and many would follow if the
// server's clock stands still.
func TestPromotionThatWasTooEarlyWaitsForTheRest(t *testing.T) {
	t.Parallel()
	var l lead
	l.observe(2 * time.Millisecond)
	require.Equal(t, 2*time.Millisecond, l.startIn(2*time.Millisecond))
	require.Equal(t, time.Millisecond, l.startIn(time.Millisecond))
	require.Zero(t, l.startIn(0))
	require.Negative(t, l.startIn(-time.Millisecond), "more is due, so at once")
}

// sentAt records when the last command was sent.
type sentAt struct{ at time.Time }

func (s *sentAt) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentAt) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.at = time.Now()
		return next(ctx, cmd)
	}
}

func (s *sentAt) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestNextPromotionReachesTheServerAtTheEvent(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	mini.SetTime(time.Now().Truncate(time.Millisecond)) // its clock stands still
	s, err := New(Config{Client: client, Topics: []string{}}, nil)
	require.NoError(t, err)
	t.Cleanup(s.pools.close)
	var closeMailbox func()
	s.mailbox, closeMailbox = wake.Open(servers.MustClient(client), "p")
	t.Cleanup(closeMailbox)
	topic := queue.NewTopic(servers.MustClient(client), "p", "t")
	require.NoError(t, topic.Register(t.Context(), "g", queue.GroupOptions{MaxDeliveries: -1, Retention: -1}))
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(t, err)
	message := queue.Message{ID: id, Due: queue.In(time.Second), Body: []byte("x")}
	require.NoError(t, topic.PublishWithin(t.Context(), "p", 1, []queue.Message{message}, queue.Limit{}))

	t1 := &served{topic: topic, receiver: s.mailbox.Receive(nil, func(string, func(time.Time)) {}), busy: true}
	hook := &sentAt{}
	client.AddHook(hook)
	s.promote(t.Context(), s.pools.first, []*served{t1}) // calls that read the topic come before the promotion
	require.False(t, t1.target.After(hook.at.Add(time.Second)), "later by the time that the answer took")
	require.True(t, t1.target.After(hook.at.Add(time.Second/2)))

	s.pools.first.lead = lead{}
	s.pools.first.lead.observe(time.Second / 2)
	t1.target, t1.busy = time.Time{}, true
	s.woken(t1, "1000", nil)
	require.False(t, t1.target.After(time.Now().Add(time.Second/2)), "later by the time that the wake-up took")
}
