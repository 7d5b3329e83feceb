package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// The lease lasts for an hour, and would be extended in twenty minutes.
func TestContextOfTheHandlerEndsWhenItsMessageIsKilled(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		long := func(c *redisdelay.SubscriberConfig) { c.LeaseDuration, c.MaxInFlight = time.Hour, 2 }
		messages := s.subscribe(t, "a", long)
		require.NoError(t, s.publisher(t).Publish(topic, text("poison"), text("good")))
		poison, good := receive(t, messages), receive(t, messages)
		d, ok := redisdelay.DeliveryFromContext(poison.Context())
		require.True(t, ok)
		state, err := s.admin.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: d.ID}, admin.KillOptions{Reason: "it kills workers"})
		require.NoError(t, err)
		require.Equal(t, admin.InHand, state)
		select {
		case <-poison.Context().Done():
		case <-time.After(soon):
			require.Fail(t, "the handler goes on")
		}
		require.ErrorIs(t, context.Cause(poison.Context()), redisdelay.ErrLeaseLost)
		require.NoError(t, good.Context().Err())
		poison.Ack()
		good.Ack()
		eventually(t, func() bool { return s.group(t, "a").InHand == 0 }, "the other is settled")
		dead := s.list(t, "a", admin.Dead)
		require.Len(t, dead, 1)
		require.Equal(t, "killed: it kills workers", dead[0].Places[0].Reason)
		require.Equal(t, "poison", string(dead[0].Payload))
	})
}

func TestMessageForAStreamIsKilledWhileItWaits(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		name := s.Prefix + "-stream"
		p := s.publisher(t, func(c *redisdelay.PublisherConfig) {
			c.Stream, c.Marshaler = &redisdelay.StreamConfig{DisableScheduler: true}, nil
		})
		require.NoError(t, p.Publish(name, delayed("x", time.Hour), text("there")))
		page, err := s.admin.List(ctx, name, admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		state, err := s.admin.Kill(ctx, name, admin.GroupMessage{Group: redisdelay.StreamGroup, ID: page.Messages[0].ID}, admin.KillOptions{})
		require.NoError(t, err)
		require.Equal(t, admin.Waiting, state)
		page, err = s.admin.List(ctx, name, admin.Query{State: admin.Dead, Group: redisdelay.StreamGroup})
		require.NoError(t, err)
		require.Equal(t, "killed", page.Messages[0].Places[0].Reason)
	})
}

func TestKillRefusesALongReason(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	_, err := s.admin.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: "x"}, admin.KillOptions{Reason: strings.Repeat("x", 1001)})
	require.ErrorIs(t, err, admin.ErrInvalidArgument)
}
