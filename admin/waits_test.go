package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// fill publishes n messages that wait, a second apart from an hour on. Each third is a gift.
func (s *setup) fill(t testing.TB, n int) {
	t.Helper()
	p := s.publisher(t)
	var some []*message.Message
	for i := range n {
		msg := delayed(fmt.Sprintf("%05d", i), time.Hour+time.Duration(i)*time.Second)
		msg.Metadata.Set("kind", []string{"gift", "book", "card"}[i%3])
		if i%5 == 0 {
			redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
		}
		if some = append(some, msg); len(some) == 1000 || i == n-1 {
			require.NoError(t, p.Publish(topic, some...))
			some = nil
		}
	}
}

// fillRetries has each of some groups retry n messages, which are due a second apart from two hours
// on. It comes before other messages are published.
func (s *setup) fillRetries(t testing.TB, n int, groups ...string) {
	t.Helper()
	var some []*message.Message
	for i := range n {
		msg := text(fmt.Sprint("retry ", i))
		msg.Metadata.Set("kind", []string{"gift", "book", "card"}[i%3])
		some = append(some, msg)
	}
	require.NoError(t, s.publisher(t).Publish(topic, some...))
	for _, name := range groups {
		group := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group(name)
		c := queue.Claim{Subscription: queue.Token(), Number: 1, Limit: 1000, Lease: time.Hour, Bytes: 1 << 30}
		call := group.ClaimCall(c)
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
		claimed, err := c.ReadClaim(call.Cmd())
		require.NoError(t, err)
		require.Len(t, claimed.Messages, n)
		var failures []queue.Failure
		for i := range claimed.Messages {
			retry := queue.In(2*time.Hour + time.Duration(i)*time.Second)
			failures = append(failures, queue.Failure{Leased: &claimed.Messages[i], Retry: retry})
		}
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls(failures)...))
	}
}

var gifts = admin.Filter{Metadata: map[string]string{"kind": "gift"}}

// place is a state of a message in a group; "" is all groups.
type place struct {
	id    string
	group string
	state admin.State
}

// waiting returns when each message is due that waits, and which of them gifts choose in the topic
// and in group a.
func (s *setup) waiting(t testing.TB) (due map[place]time.Time, chosen []admin.Message) {
	t.Helper()
	due = map[place]time.Time{}
	for _, of := range []struct {
		group string
		state admin.State
	}{{"", admin.Waiting}, {"a", admin.Retrying}, {"b", admin.Retrying}} {
		for _, m := range s.list(t, of.group, of.state) {
			due[place{m.ID, of.group, of.state}] = m.Places[0].At
			if of.group != "b" && gifts.Matches(m) {
				chosen = append(chosen, m)
			}
		}
	}
	return due, chosen
}

// listed returns messages as Bulk.Listed.
func listed(all []admin.Message) iter.Seq2[admin.Message, error] {
	return func(yield func(admin.Message, error) bool) {
		for _, m := range all {
			if !yield(m, nil) {
				return
			}
		}
	}
}

var waits = []admin.State{admin.Waiting, admin.Retrying}

// A run that is interrupted anywhere and run again changes each chosen message exactly once, and no
// other.
func TestInterruptedBulkChangesEachMessageOnce(t *testing.T) {
	at := time.Now().Add(36 * time.Hour).Truncate(time.Second)
	for name, c := range map[string]struct {
		operation string
		change    func(b *admin.Bulk)
		want      func(was time.Time) time.Time // zero: gone
	}{
		"forward":  {"reschedule", func(b *admin.Bulk) { b.By = 7 * time.Second }, func(was time.Time) time.Time { return was.Add(7 * time.Second) }},
		"backward": {"reschedule", func(b *admin.Bulk) { b.By = -time.Minute }, func(was time.Time) time.Time { return was.Add(-time.Minute) }},
		"to":       {"reschedule", func(b *admin.Bulk) { b.When = admin.At(at) }, func(time.Time) time.Time { return at }},
		"cancel":   {"cancel", func(*admin.Bulk) {}, func(time.Time) time.Time { return time.Time{} }},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.register(t, "a", "b")
				s.fillRetries(t, 150, "a", "b")
				s.fill(t, 600)
				before, chosen := s.waiting(t)
				require.Len(t, before, 900)
				require.Len(t, chosen, 250)
				o, _ := admin.OperationNamed(c.operation)
				bulk := admin.Bulk{Group: "a", States: waits, Filter: gifts, Listed: listed(chosen)}
				c.change(&bulk)
				seed := rand.Uint64()
				t.Log("seed", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				changed, cuts := 0, 0
				for runs := 0; ; runs++ {
					running, stop := context.WithCancel(ctx)
					a, restore := s.admin, func() bool { return true }
					after := random.IntN(4)
					if runs%2 == 0 {
						bulk.Progress = func(admin.Progress) {
							if after--; after < 0 {
								stop()
							}
						}
					} else if runs < 8 {
						a, restore = s.cutting(t, random.IntN(3), random.IntN(2) == 0)
						bulk.Progress = nil
					}
					last := runs > 12
					if last {
						bulk.Progress = nil
					}
					n, err := o.Run(running, a, topic, bulk)
					changed += n
					if restore() && errors.Is(err, io.ErrUnexpectedEOF) {
						cuts++
					}
					stop()
					if err == nil && last {
						break
					}
					if last {
						require.NoError(t, err)
					}
				}
				require.Positive(t, cuts, "a connection was lost")
				require.LessOrEqual(t, changed, 250)
				require.GreaterOrEqual(t, changed, 250-100*cuts, "all but those whose answers were lost")
				of := map[place]bool{}
				for _, m := range chosen {
					of[place{m.ID, m.Places[0].Group, m.Places[0].State}] = true
				}
				now, _ := s.waiting(t)
				for p, was := range before {
					want := was
					if of[p] {
						want = c.want(was)
					}
					require.True(t, now[p].Equal(want), "%v: was due at %v, want %v, got %v", p, was, want, now[p])
				}
			})
		})
	}
}

// cutting returns an Admin whose connection is lost at a pipeline: after it was sent, or before.
func (s *setup) cutting(t *testing.T, pipelines int, sent bool) (a *admin.Admin, restore func() bool) {
	t.Helper()
	client := redis.NewClient(s.Client.(*redis.Client).Options())
	client.AddHook(&cutter{left: pipelines, sent: sent})
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	return a, func() bool { return client.Close() == nil }
}

type cutter struct {
	left int
	sent bool
}

func (c *cutter) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *cutter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c *cutter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if c.left--; c.left >= 0 {
			return next(ctx, cmds)
		}
		if c.sent && c.left == -1 {
			_ = next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
}

// Without a list, a run moves no message twice that it meets again at its new place.
func TestShiftMovesEachMessageOnce(t *testing.T) {
	for _, by := range []time.Duration{time.Second, 10 * time.Minute, -10 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			both(t, func(t *testing.T, s *setup) {
				s.register(t, "a", "b")
				s.fillRetries(t, 30, "a", "b")
				s.fill(t, 1300)
				before, chosen := s.waiting(t)
				would, err := s.admin.RescheduleAll(ctx, topic, admin.Bulk{Group: "a", States: waits, Filter: gifts, By: by, DryRun: true})
				require.NoError(t, err)
				require.Equal(t, len(chosen), would)
				unchanged, _ := s.waiting(t)
				require.Equal(t, before, unchanged)
				n, err := s.admin.RescheduleAll(ctx, topic, admin.Bulk{Group: "a", States: waits, Filter: gifts, By: by})
				require.NoError(t, err)
				require.Equal(t, len(chosen), n)
				want := before
				for _, m := range chosen {
					want[place{m.ID, m.Places[0].Group, m.Places[0].State}] = m.Places[0].At.Add(by)
				}
				after, _ := s.waiting(t)
				require.Equal(t, want, after)

				// The list gives each its due time back, twice as well as once.
				for range 2 {
					n, err = s.admin.RescheduleAll(ctx, topic, admin.Bulk{Group: "a", States: waits, Listed: listed(chosen), Back: true})
					require.NoError(t, err)
					require.Equal(t, len(chosen), n)
				}
				back, _ := s.waiting(t)
				require.Equal(t, unchanged, back)
			})
		})
	}
}

func TestNowAndSpreadOfWaitingMessages(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a", "b")
		s.fill(t, 30)
		now := s.stats(t).Now
		o, _ := admin.OperationNamed("deliver-now")
		n, err := o.Run(ctx, s.admin, topic, admin.Bulk{Filter: gifts, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		all := s.list(t, "", admin.Waiting)
		require.Equal(t, []string{"00000", "00003", "00001"}, []string{string(all[0].Payload), string(all[1].Payload), string(all[2].Payload)})
		require.WithinDuration(t, now, all[1].Places[0].At, soon)
		n, err = o.Run(ctx, s.admin, topic, admin.Bulk{Filter: gifts, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, 8, n, "two are due")
		require.WithinDuration(t, now, s.stats(t).NextLook, soon, "the scheduler knows")

		at := now.Add(time.Minute).Truncate(time.Second)
		n, err = s.admin.RescheduleAll(ctx, topic, admin.Bulk{When: admin.At(at), Spread: 30 * time.Second})
		require.NoError(t, err)
		require.Equal(t, 30, n)
		for i, m := range s.list(t, "", admin.Waiting) {
			require.Equal(t, all[i].ID, m.ID, "they keep their order")
			require.True(t, m.Places[0].At.Equal(at.Add(time.Duration(i)*time.Second)), m.Places[0].At)
		}
		_, err = o.Run(ctx, s.admin, topic, admin.Bulk{By: time.Hour})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
	})
}

// Times bound what is read, and a filter by them is of the due times.
func TestBulkByDueTime(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		s.fill(t, 2500)
		all := s.list(t, "", admin.Waiting)
		looked := 0
		bulk := admin.Bulk{Filter: admin.Filter{From: all[2000].Places[0].At, Until: all[2010].Places[0].At}, Progress: func(p admin.Progress) { looked = p.Looked }}
		n, err := s.admin.CancelAll(ctx, topic, bulk)
		require.NoError(t, err)
		require.Equal(t, 10, n)
		require.Equal(t, 10, looked)
		require.Equal(t, append(all[:2000:2000], all[2010:]...), s.list(t, "", admin.Waiting))
	})
}

// A message that cannot have the due time is named, and the others get it.
func TestBulkNamesWhatItCannotReschedule(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		for i := range 20 {
			msg := delayed(fmt.Sprint(i), time.Hour)
			if i < 15 {
				redisdelay.ExpireAt(msg, time.Now().Add(90*time.Minute), redisdelay.ExpiryDead)
			}
			require.NoError(t, s.publisher(t).Publish(topic, msg))
		}
		var last admin.Progress
		n, err := s.admin.RescheduleAll(ctx, topic, admin.Bulk{By: time.Hour, Progress: func(p admin.Progress) { last = p }})
		require.Equal(t, 5, n)
		require.ErrorIs(t, err, admin.ErrPastExpiry)
		require.ErrorContains(t, err, "15 refused, and as they were:\nmessage 0")
		require.ErrorContains(t, err, "and 5 more")
		require.Equal(t, admin.Progress{Looked: 20, Done: 5, Refused: 15}, last)
		n, err = s.admin.RescheduleAll(ctx, topic, admin.Bulk{Limit: 1, By: redisdelay.MaxDelay})
		require.Zero(t, n)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
	})
}

// A listed message that does not wait for that time any more stays as it is, and is counted.
func TestBulkLeavesWhatDoesNotWaitAnyMore(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a", "b")
		s.fill(t, 4)
		_, chosen := s.waiting(t)
		require.Len(t, chosen, 2)
		require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByID(chosen[0].ID)))
		require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByID(chosen[1].ID), admin.In(5*time.Hour)))
		before, _ := s.waiting(t)
		for name, do := range map[string]func(context.Context, string, admin.Bulk) (int, error){"cancel": s.admin.CancelAll, "reschedule": s.admin.RescheduleAll} {
			var last admin.Progress
			n, err := do(ctx, topic, admin.Bulk{Listed: listed(chosen), Progress: func(p admin.Progress) { last = p }})
			require.NoError(t, err, name)
			require.Zero(t, n, name)
			require.Equal(t, admin.Progress{Looked: 2, Gone: 2}, last, name)
		}
		after, _ := s.waiting(t)
		require.Equal(t, before, after)

		require.Error(t, only(s.admin.RescheduleAll(ctx, "no such topic", admin.Bulk{Listed: listed(chosen)})))
		wrong := chosen[0]
		wrong.Topic = "another"
		require.ErrorIs(t, only(s.admin.CancelAll(ctx, topic, admin.Bulk{Listed: listed([]admin.Message{wrong})})), admin.ErrInvalidArgument)
	})
}

func TestBulkOnWaitingMessagesOfPartitions(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := newPartitioned(t, s)
		before := s.list(t, "", admin.Waiting)
		require.Len(t, before, 6)
		n, err := p.admin.RescheduleAll(ctx, topic, admin.Bulk{By: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 6, n)
		for i, m := range s.list(t, "", admin.Waiting) {
			require.Equal(t, before[i].ID, m.ID)
			require.True(t, m.Places[0].At.Equal(before[i].Places[0].At.Add(time.Hour)))
		}
		n, err = p.admin.RescheduleAll(ctx, topic, admin.Bulk{Listed: listed(before), Back: true})
		require.NoError(t, err)
		require.Equal(t, 6, n)
		require.Equal(t, before, s.list(t, "", admin.Waiting))
		n, err = p.admin.CancelAll(ctx, topic, admin.Bulk{Limit: 5})
		require.NoError(t, err)
		require.Equal(t, 5, n)
		require.Equal(t, before[5:], s.list(t, "", admin.Waiting))
	})
}
