package admin_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

const reminder = "order 123"

// reminding returns a message that is due, under the delay ID of the reminder.
func reminding(payload string) *message.Message {
	msg := text(payload)
	redisdelay.SetDelayID(msg, reminder, redisdelay.DelayIDReplace)
	return msg
}

// retryIn has a group nack its next message with a delay of an hour.
func (s *setup) retryIn(t *testing.T, group string) {
	t.Helper()
	sub := s.subscriber(t, group)
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	msg := receive(t, messages)
	redisdelay.DelayFor(msg, time.Hour)
	msg.Nack()
	eventually(t, func() bool { return s.group(t, group).Retrying > 0 }, "it retries")
	require.NoError(t, sub.Close())
}

// reaching are the operations by delay ID that change something.
var reaching = map[string]func(a *admin.Admin) error{
	"cancel": func(a *admin.Admin) error { return a.Cancel(ctx, topic, admin.ByDelayID(reminder)) },
	"reschedule": func(a *admin.Admin) error {
		return a.Reschedule(ctx, topic, admin.ByDelayID(reminder), admin.In(2*time.Hour))
	},
	"deliver now": func(a *admin.Admin) error { return a.Reschedule(ctx, topic, admin.ByDelayID(reminder), admin.When{}) },
}

func TestOperationsByDelayIDReachRetriesInAllGroups(t *testing.T) {
	for name, operation := range reaching {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.register(t, "a", "b")
				require.NoError(t, s.publisher(t).Publish(topic, reminding("x")))
				s.retryIn(t, "a")
				s.retryIn(t, "b")
				m, err := s.admin.Get(ctx, topic, admin.ByDelayID(reminder))
				require.NoError(t, err)
				require.Equal(t, reminder, m.DelayID)
				require.Len(t, m.Places, 2)
				require.Equal(t, []admin.State{admin.Retrying, admin.Retrying}, []admin.State{m.Places[0].State, m.Places[1].State})
				require.NoError(t, operation(s.admin))
				switch name {
				case "cancel":
					require.Zero(t, s.stats(t).Messages)
					require.ErrorIs(t, operation(s.admin), admin.ErrNotFound)
				case "reschedule":
					for _, g := range []string{"a", "b"} {
						require.WithinDuration(t, time.Now().Add(2*time.Hour), s.list(t, g, admin.Retrying)[0].Places[0].At, time.Minute)
					}
				default:
					again := receive(t, s.subscribe(t, "a"))
					d, _ := redisdelay.DeliveryFromContext(again.Context())
					require.Equal(t, 2, d.Number)
					again.Ack()
				}
			})
		})
	}
}

func TestOperationsByDelayIDChangeNothingIfAGroupDoesNotWait(t *testing.T) {
	for state, want := range map[string]admin.State{"ready": admin.Ready, "in hand": admin.InHand, "dead": admin.Dead} {
		t.Run(state, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.register(t, "a", "b")
				require.NoError(t, s.publisher(t).Publish(topic, reminding("x")))
				s.retryIn(t, "a")
				switch state {
				case "in hand":
					receive(t, s.subscribe(t, "b"))
				case "dead":
					msg := receive(t, s.subscribe(t, "b"))
					redisdelay.DeadOnNack(msg, errors.New("wrong"))
					msg.Nack()
					eventually(t, func() bool { return s.group(t, "b").Dead == 1 }, "it is dead")
				}
				due := s.list(t, "a", admin.Retrying)[0].Places[0].At
				for name, operation := range reaching {
					err := operation(s.admin)
					require.ErrorIs(t, err, admin.ErrTooLate, name)
					require.ErrorContains(t, err, `is retrying in group "a", `+state+` in group "b"`, name)
				}
				require.Equal(t, due, s.list(t, "a", admin.Retrying)[0].Places[0].At)
				m, err := s.admin.Get(ctx, topic, admin.ByDelayID(reminder))
				require.NoError(t, err)
				require.Equal(t, []admin.State{admin.Retrying, want}, []admin.State{m.Places[0].State, m.Places[1].State})
			})
		})
	}
}

// The recipe for one reminder: Cancel, then Publish.
func TestPublishingAnewLeavesTheRetryUnlessItIsCancelled(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		p := s.publisher(t)
		require.NoError(t, p.Publish(topic, reminding("1")))
		s.retryIn(t, "a")
		again := delayed("2", time.Hour)
		redisdelay.SetDelayID(again, reminder, redisdelay.DelayIDReplace)
		require.NoError(t, p.Publish(topic, again))
		require.Equal(t, 2, s.stats(t).Messages, "the retry stays")

		require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID(reminder)))
		require.Len(t, s.list(t, "a", admin.Retrying), 1, "the delay ID means the one that waits")
		require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID(reminder)))
		require.NoError(t, p.Publish(topic, again))
		require.Equal(t, 1, s.stats(t).Messages)
	})
}

func TestRetriesOfAPartitionedTopicAreReached(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		const id = "retrying"
		for _, plain := range p.plain[1:] {
			msg := text("x")
			redisdelay.SetDelayID(msg, id, redisdelay.DelayIDReplace)
			require.NoError(t, p.publisher(t).Publish(plain, msg))
		}
		for i, plain := range p.plain[1:] {
			for _, g := range []string{"billing", "audit"} {
				page, err := p.admin.List(ctx, plain, admin.Query{State: admin.Ready, Group: g, Filter: admin.Filter{DelayID: id}})
				require.NoError(t, err)
				_, err = p.admin.Kill(ctx, plain, admin.GroupMessage{Group: g, ID: page.Messages[0].ID}, admin.KillOptions{})
				require.NoError(t, err)
				n, err := p.admin.RequeueAll(ctx, plain, admin.Bulk{Group: g, Spread: time.Duration(i+1) * 100 * time.Hour})
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
		}
		m, err := p.admin.Get(ctx, topic, admin.ByDelayID(id))
		require.NoError(t, err)
		require.Equal(t, id, m.DelayID)
		require.NoError(t, p.admin.Reschedule(ctx, topic, admin.ByDelayID(id), admin.In(500*time.Hour)))
		require.NoError(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(id)))
		require.ErrorIs(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(id)), admin.ErrNotFound)
	})
}

// Each partition has its own step. What one of them refuses is told, also if others changed.
func TestPartitionThatIsTooLateIsTold(t *testing.T) {
	for _, late := range []int{0, 1} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			eachPartition(t, func(t *testing.T, p *partitioned) {
				const id = "retrying"
				for i, plain := range p.plain[1:] {
					msg := text("x")
					redisdelay.SetDelayID(msg, id, redisdelay.DelayIDReplace)
					require.NoError(t, p.publisher(t).Publish(plain, msg))
					for j, g := range []string{"billing", "audit"} {
						page, err := p.admin.List(ctx, plain, admin.Query{State: admin.Ready, Group: g, Filter: admin.Filter{DelayID: id}})
						require.NoError(t, err)
						_, err = p.admin.Kill(ctx, plain, admin.GroupMessage{Group: g, ID: page.Messages[0].ID}, admin.KillOptions{})
						require.NoError(t, err)
						if i == late && j == 0 {
							continue // it is dead
						}
						_, err = p.admin.RequeueAll(ctx, plain, admin.Bulk{Group: g, Spread: 100 * time.Hour})
						require.NoError(t, err)
					}
				}
				err := p.admin.Cancel(ctx, topic, admin.ByDelayID(id))
				require.ErrorIs(t, err, admin.ErrTooLate)
				require.ErrorContains(t, err, `dead in group "billing"`)
				require.ErrorContains(t, err, p.plain[1+late])
			})
		})
	}
}

func TestRescheduleReadsTheExpiry(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		ends := time.Now().Add(2 * time.Hour)
		for then, want := range map[redisdelay.OnExpiry]error{
			redisdelay.ExpiryDrop: admin.ErrPastExpiry, redisdelay.ExpiryDead: admin.ErrPastExpiry, redisdelay.ExpiryDeliver: nil,
		} {
			msg := delayed("x", time.Hour)
			redisdelay.SetDelayID(msg, string(then), redisdelay.DelayIDReplace)
			redisdelay.ExpireAt(msg, ends, then)
			require.NoError(t, s.publisher(t).Publish(topic, msg))
			require.ErrorIs(t, s.admin.Reschedule(ctx, topic, admin.ByDelayID(string(then)), admin.At(ends)), want)
			require.ErrorIs(t, s.admin.Reschedule(ctx, topic, admin.ByDelayID(string(then)), admin.In(3*time.Hour)), want)
			require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByDelayID(string(then)), admin.At(ends.Add(-time.Minute))))
		}
	})
}

// A copy is delivered however late the message is.
func TestMoveDeadIgnoresTheExpiry(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		msg := text("x")
		redisdelay.ExpireAt(msg, time.Now().Add(-time.Hour), redisdelay.ExpiryDead)
		require.NoError(t, s.publisher(t).Publish(topic, msg))
		s.subscribe(t, "a")
		eventually(t, func() bool { return s.group(t, "a").Dead == 1 }, "it is too late")
		refusing := s.with(t, func(c *admin.Config) { c.Unmarshaler = refuseAll{} }) // it moves as it is
		n, err := refusing.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other", Spread: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		page, err := refusing.List(ctx, "other", admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		require.Len(t, page.Messages, 1)
		require.NoError(t, refusing.Reschedule(ctx, "other", admin.ByID(page.Messages[0].ID), admin.In(time.Hour)), "its expiry cannot be read")
	})
}

type refuseAll struct{}

func (refuseAll) Unmarshal(string, []byte) (*message.Message, error) {
	return nil, errors.New("refused")
}

func (s *setup) with(t *testing.T, change func(*admin.Config)) *admin.Admin {
	t.Helper()
	c := admin.Config{Client: s.Client, KeyPrefix: s.Prefix}
	change(&c)
	a, err := admin.New(c)
	require.NoError(t, err)
	return a
}
