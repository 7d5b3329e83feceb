package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// when returns an Admin that calls do once, after the first script after which a condition holds.
func (s *setup) when(t *testing.T, is func() bool, do func()) *admin.Admin {
	t.Helper()
	done := false
	t.Cleanup(func() { require.True(t, done || t.Failed(), "it came to that") })
	return s.afterEachScript(t, func() {
		if !done && is() {
			done = true
			do()
		}
	})
}

func (s *setup) movedTo(other string) int64 {
	return s.Client.HLen(ctx, queue.NewKeys(s.Prefix, other).Messages()).Val()
}

// A dead letter that another operator requeued or deleted first is not moved as well.
func TestDeadLettersChangedMeanwhileAreNotMoved(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 6)
		dead := s.list(t, "a", admin.Dead)
		a := s.when(t, func() bool { return s.movedTo("other") > 0 }, func() {
			require.NoError(t, s.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: dead[1].ID}))
			require.NoError(t, s.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "a", ID: dead[2].ID}))
			n, err := s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "another", Filter: admin.Filter{
				Match: func(m admin.Message) bool { return m.ID == dead[4].ID }}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		})
		n, err := a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other"})
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.EqualValues(t, 3, s.movedTo("other"))
		require.EqualValues(t, 1, s.movedTo("another"))
		require.Equal(t, []int{1, 0}, []int{s.group(t, "a").Retrying, s.group(t, "a").Dead})

		messages, err := s.subscriber(t, "").Subscribe(ctx, "other")
		require.NoError(t, err)
		for _, i := range []int{0, 3, 5} {
			msg := receive(t, messages)
			require.Equal(t, fmt.Sprintf("%05d", i), string(msg.Payload))
			msg.Ack()
		}
		eventually(t, func() bool { return s.movedTo("other") == 0 }, "nothing is left of the others")
	})
}

// At whatever step the context of MoveDead ends, the chunk is moved whole.
func TestInterruptedMoveFinishesItsChunk(t *testing.T) {
	const n = 5
	for name, reached := range map[string]func(*setup, *testing.T) bool{
		"when they are published": func(s *setup, _ *testing.T) bool { return s.movedTo("other") > 0 },
		"when they are forgotten": func(s *setup, t *testing.T) bool { return s.movedTo("other") > 0 && s.group(t, "a").Dead == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.bury(t, n)
				ending, end := context.WithCancel(ctx)
				defer end()
				a := s.when(t, func() bool { return reached(s, t) }, end)
				moved, err := a.MoveDead(ending, topic, admin.Bulk{Group: "a", To: "other"})
				require.NoError(t, err)
				require.Equal(t, n, moved)
				require.Error(t, ending.Err())
				require.Zero(t, s.group(t, "a").Dead)
				stats, err := s.admin.Stats(ctx, "other")
				require.NoError(t, err)
				require.Equal(t, n, stats.Waiting)
				require.LessOrEqual(t, stats.NextDue.Sub(stats.Now), time.Duration(0))
			})
		})
	}
}

// blank is a marshaler whose messages have no bytes.
type blank struct{}

func (blank) Marshal(string, *message.Message) ([]byte, error) { return nil, nil }

func (blank) Unmarshal(_ string, body []byte) (*message.Message, error) {
	if len(body) > 0 {
		return nil, errors.New("there are bytes")
	}
	return message.NewMessage("blank", nil), nil
}

func TestMessagesOfNoBytesAreNotReportedAsLost(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		p := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Marshaler = blank{} })
		require.NoError(t, p.Publish(topic, text("1"), text("2")))
		s.buryReady(t, 2)
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix, Unmarshaler: blank{}})
		require.NoError(t, err)
		list := func() []admin.Message {
			page, err := a.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a"})
			require.NoError(t, err)
			require.Len(t, page.Messages, 2)
			return page.Messages
		}
		for _, m := range list() {
			require.NoError(t, m.Err)
			require.Equal(t, "blank", m.UUID)
		}
		require.NoError(t, s.Client.HDel(ctx, s.keys.Messages(), list()[0].ID).Err())
		require.ErrorContains(t, list()[0].Err, "the body is gone")
		require.NoError(t, list()[1].Err)
		n, err := a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.EqualValues(t, 1, s.movedTo("other"))
		require.NoError(t, only(a.PurgeDead(ctx, topic, admin.Bulk{Group: "a"})))
	})
}

// An operation whose context ends finishes the chunk that it has begun, and begins no other.
func TestEndedContextFinishesTheChunk(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 2500)
		ended, end := context.WithCancel(ctx)
		a := s.when(t, func() bool { return s.movedTo("other") > 0 }, end)
		n, err := a.MoveDead(ended, topic, admin.Bulk{Group: "a", To: "other"})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1000, n)
		require.Equal(t, 1500, s.group(t, "a").Dead)
		stats, err := s.admin.Stats(ctx, "other")
		require.NoError(t, err)
		require.Equal(t, 1000, stats.Waiting)
		buckets, err := s.admin.Upcoming(ctx, "other", admin.Load{From: stats.Now.Add(-time.Hour), Width: time.Hour + time.Second, Buckets: 1})
		require.NoError(t, err)
		require.Equal(t, 1000, buckets[0].Waiting, "all are due now, none after the minute")
	})
}
