package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

func TestALookSetsOutBeforeItsEventByTheShortestWayOfLate(t *testing.T) {
	t.Parallel()
	var l lead
	require.Equal(t, time.Second, l.before(time.Second), "no way is known")
	l.observe(5 * time.Millisecond)
	require.Equal(t, 995*time.Millisecond, l.before(time.Second))
	l.observe(2 * time.Millisecond)
	require.Equal(t, 998*time.Millisecond, l.before(time.Second))
	l.observe(time.Minute)
	require.InDelta(t, 998*time.Millisecond, l.before(time.Second), float64(200*time.Microsecond), "one took long")
	for range 100 {
		l.observe(40 * time.Millisecond)
	}
	require.Equal(t, 960*time.Millisecond, l.before(time.Second), "all do now")
}

// The server may be there already by its clock, but another look at once would find that no sooner, and be one of many where
// its clock stands still.
func TestALookThatCameTooEarlyWaitsOutTheRest(t *testing.T) {
	t.Parallel()
	var l lead
	l.observe(2 * time.Millisecond)
	require.Equal(t, 2*time.Millisecond, l.before(2*time.Millisecond))
	require.Equal(t, time.Millisecond, l.before(time.Millisecond))
	require.Zero(t, l.before(0))
	require.Negative(t, l.before(-time.Millisecond), "more is due: at once")
}

// sentAt notes when a command was sent last.
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

func TestTheNextLookIsAtTheServerWhenTheEventIs(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	mini.SetTime(time.Now().Truncate(time.Millisecond)) // and stands still
	s, err := New(Config{Client: client, Topics: []string{}}, nil)
	require.NoError(t, err)
	t.Cleanup(s.crews.close)
	var closeMailbox func()
	s.mailbox, closeMailbox = wake.Open(queue.MustClient(client), "p")
	t.Cleanup(closeMailbox)
	topic := queue.NewTopic(queue.MustClient(client), "p", "t")
	require.NoError(t, topic.Register(t.Context(), "g", queue.GroupOptions{MaxDeliveries: -1, Retention: -1}))
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(t, err)
	message := queue.Message{ID: id, Due: queue.In(time.Second), Body: []byte("x")}
	require.NoError(t, topic.PublishWithin(t.Context(), "p", 1, []queue.Message{message}, 0))

	look := &served{topic: topic, address: "nobody|1", busy: true}
	hook := &sentAt{}
	client.AddHook(hook)
	s.promote(t.Context(), s.crews.first, []*served{look}) // whose calls to know the topic are before the look's own
	require.False(t, look.target.After(hook.at.Add(time.Second)), "late by the way of the answer")
	require.True(t, look.target.After(hook.at.Add(time.Second/2)))

	s.crews.first.lead = lead{}
	s.crews.first.lead.observe(time.Second / 2)
	look.target, look.busy = time.Time{}, true
	s.told(look, "1000", nil)
	require.False(t, look.target.After(time.Now().Add(time.Second/2)), "late by the way of what tells of it")
}
