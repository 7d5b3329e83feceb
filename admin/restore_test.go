package admin_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// whole returns all messages of a state of the topic as Restore takes them.
func (s *setup) whole(t testing.TB, group string, state admin.State) (all []admin.Message) {
	t.Helper()
	q := admin.Query{State: state, Group: group, Limit: 1000, Whole: true}
	for {
		page, err := s.admin.List(ctx, topic, q)
		require.NoError(t, err)
		all = append(all, page.Messages...)
		if q.Cursor = page.Next; q.Cursor == "" {
			return all
		}
	}
}

// restored restores messages, and returns the counts and the reasons of refusals.
func (s *setup) restored(t testing.TB, all []admin.Message, change ...func(*admin.Restoring)) (admin.Restored, []error) {
	t.Helper()
	var refused []error
	r := admin.Restoring{Refused: func(_ admin.Message, why error) { refused = append(refused, why) }}
	for _, f := range change {
		f(&r)
	}
	done, err := s.admin.Restore(ctx, topic, listed(all), r)
	require.NoError(t, err)
	require.Len(t, refused, done.Refused)
	return done, refused
}

// A run that is interrupted, and run again, brings each message back once and as it was. Retries go
// back to their group.
func TestRestoreIsInterruptedAndGoesOn(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a", "b")
		s.fillRetries(t, 120, "a", "b")
		s.fill(t, 300)
		exported := slices.Concat(s.whole(t, "a", admin.Retrying), s.whole(t, "", admin.Waiting))
		others := s.whole(t, "b", admin.Retrying)
		n, err := s.admin.CancelAll(ctx, topic, admin.Bulk{States: waits, Group: "a"})
		require.NoError(t, err)
		require.Equal(t, 420, n)

		would, _ := s.restored(t, exported, func(r *admin.Restoring) { r.DryRun = true })
		require.Equal(t, admin.Restored{Messages: 420}, would)
		require.Empty(t, s.list(t, "a", admin.Retrying))
		require.Empty(t, s.list(t, "", admin.Waiting))

		ending, end := context.WithCancel(ctx)
		done, err := s.admin.Restore(ending, topic, listed(exported), admin.Restoring{Progress: func(done admin.Restored) {
			if done.Messages >= 100 {
				end()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, admin.Restored{Messages: 100}, done)
		calls := 0
		done, _ = s.restored(t, exported, func(r *admin.Restoring) { r.Progress = func(admin.Restored) { calls++ } })
		require.Equal(t, admin.Restored{Messages: 320, There: 100}, done)
		require.Equal(t, 9, calls)
		require.Equal(t, exported, slices.Concat(s.whole(t, "a", admin.Retrying), s.whole(t, "", admin.Waiting)))
		require.Equal(t, others, s.whole(t, "b", admin.Retrying))
		done, _ = s.restored(t, exported)
		require.Equal(t, admin.Restored{There: 420}, done)
	})
}

func TestRestoreNamesWhatDoesNotComeBack(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		s.fillRetries(t, 1, "a")
		s.fill(t, 2)
		exported := slices.Concat(s.whole(t, "", admin.Waiting), s.whole(t, "a", admin.Retrying))
		_, err := s.admin.CancelAll(ctx, topic, admin.Bulk{States: waits, Group: "a"})
		require.NoError(t, err)
		taken := delayed("theirs", time.Hour)
		redisdelay.SetDelayID(taken, "order 0", redisdelay.DelayIDReplace)
		require.NoError(t, s.publisher(t).Publish(topic, taken))
		exported[1].Stored.Stream = true
		exported[2].Places[0].Group = "missing"
		done, refused := s.restored(t, exported)
		require.Equal(t, admin.Restored{Refused: 3}, done)
		require.ErrorIs(t, refused[0], admin.ErrTopicMode, "which is known at once")
		require.ErrorIs(t, refused[1], admin.ErrExists)
		require.ErrorContains(t, refused[1], `delay ID "order 0"`)
		require.ErrorIs(t, refused[2], admin.ErrNotFound)
		require.ErrorContains(t, refused[2], `group "missing"`)
	})
}

func TestRestoreRefusesWhatListDidNotReturn(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		s.fill(t, 1)
		good := s.whole(t, "", admin.Waiting)[0]
		for want, change := range map[string]func(m *admin.Message){
			"its ID is none":                 func(m *admin.Message) { m.ID = "x" },
			`ly": its ID is none`:            func(m *admin.Message) { m.ID = strings.ToLower(m.ID[:24]) + "ly" },
			"it has no Stored":               func(m *admin.Message) { m.Stored = nil },
			"its Stored has no Body":         func(m *admin.Message) { m.Stored = &admin.Stored{} },
			`"1 x", which is no Record`:      func(m *admin.Message) { m.Stored = &admin.Stored{Body: m.Stored.Body, Record: "1 x"} },
			"neither waiting nor retrying":   func(m *admin.Message) { m.Places = []admin.Place{{State: admin.Dead}} },
			"want a time from the year 2000": func(m *admin.Message) { m.Places = []admin.Place{{State: admin.Waiting}} },
			`is of topic "other"`:            func(m *admin.Message) { m.Topic = "other" },
		} {
			m := good
			change(&m)
			_, err := s.admin.Restore(ctx, topic, listed([]admin.Message{m}), admin.Restoring{})
			require.ErrorIs(t, err, admin.ErrInvalidArgument)
			require.ErrorContains(t, err, want)
		}
		_, err := s.admin.Restore(ctx, "missing", listed(nil), admin.Restoring{})
		require.ErrorIs(t, err, admin.ErrNotFound)
		broken := errors.New("the file is broken")
		var failing iter.Seq2[admin.Message, error] = func(yield func(admin.Message, error) bool) { yield(admin.Message{}, broken) }
		_, err = s.admin.Restore(ctx, topic, failing, admin.Restoring{})
		require.ErrorIs(t, err, broken)
	})
}

// A message goes into a partition that programs use, or nowhere.
func TestRestoreLeavesUnusedPartitionsAlone(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		exported := p.setup.whole(t, "", admin.Waiting)
		require.Len(t, exported, 2*parts)
		n, err := p.admin.CancelAll(ctx, topic, admin.Bulk{})
		require.NoError(t, err)
		require.Equal(t, 2*parts, n)
		p.set(t, 2, 2, 3, 0)
		p.passes(t, 10*time.Second)
		p.set(t, 2, 2, 0, 0)
		done, refused := p.restored(t, exported)
		require.Equal(t, admin.Restored{Messages: 4, Refused: 2}, done)
		require.ErrorIs(t, refused[0], admin.ErrNotFound)
		require.ErrorContains(t, refused[0], "the topic has 2 partitions now")
		require.Equal(t, exported[:4], p.setup.whole(t, "", admin.Waiting))

		none := exported[0]
		none.Topic = ""
		done, refused = p.restored(t, []admin.Message{none})
		require.Equal(t, admin.Restored{Refused: 1}, done)
		require.ErrorContains(t, refused[0], "the topic has partitions, and the message is of none")
	})
}

// After the number of partitions changed, a delay ID may be in another partition than its message
// was.
func TestADelayIDIsInOnePartition(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		exported := p.setup.whole(t, "", admin.Waiting)
		_, err := p.admin.CancelAll(ctx, topic, admin.Bulk{})
		require.NoError(t, err)
		i := slices.IndexFunc(exported, func(m admin.Message) bool { return m.DelayID != "" && m.Topic == p.plain[0] })
		m := exported[i]
		again := delayed("again", time.Hour)
		redisdelay.SetDelayID(again, m.DelayID, redisdelay.DelayIDReplace)
		require.NoError(t, p.publisher(t).Publish(p.plain[1], again))
		for _, dry := range []bool{true, false} {
			done, refused := p.restored(t, exported, func(r *admin.Restoring) { r.DryRun = dry })
			require.Equal(t, admin.Restored{Messages: len(exported) - 1, Refused: 1}, done)
			require.ErrorIs(t, refused[0], admin.ErrExists)
			require.ErrorContains(t, refused[0], m.DelayID)
		}
		require.NoError(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(m.DelayID)))
		done, _ := p.restored(t, exported)
		require.Equal(t, admin.Restored{Messages: 1, There: len(exported) - 1}, done)
		require.NoError(t, p.publisher(t).Publish(p.plain[1], again))
		done, _ = p.restored(t, exported)
		require.Equal(t, admin.Restored{There: len(exported)}, done, "it is there, whoever else has the delay ID")
	})
}

func TestMessagesForAStreamComeBack(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		name := s.Prefix + "-restored"
		t.Cleanup(func() { s.Client.Del(ctx, name) })
		p := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Stream, c.Marshaler = &redisdelay.StreamConfig{}, nil })
		msg := delayed("x", time.Hour)
		redisdelay.ExpireAt(msg, time.Now().Add(2*time.Hour), redisdelay.ExpiryDead)
		require.NoError(t, p.Publish(name, msg))
		waiting := func() []admin.Message {
			page, err := s.admin.List(ctx, name, admin.Query{State: admin.Waiting, Whole: true})
			require.NoError(t, err)
			return page.Messages
		}
		exported := waiting()
		require.True(t, exported[0].Stored.Stream)
		require.NoError(t, s.admin.Cancel(ctx, name, admin.ByID(exported[0].ID)))
		done, err := s.admin.Restore(ctx, name, listed(exported), admin.Restoring{})
		require.NoError(t, err)
		require.Equal(t, admin.Restored{Messages: 1}, done)
		require.Equal(t, exported, waiting())
		require.NoError(t, s.admin.Reschedule(ctx, name, admin.ByID(exported[0].ID), admin.In(0)))
		eventually(t, func() bool { return s.Client.XLen(ctx, name).Val() == 1 }, "it comes into the stream")
	})
}

func TestAMarkLastsAsLongAsTheScriptSays(t *testing.T) {
	t.Parallel()
	require.Equal(t, admin.MarkLasts.Milliseconds(), int64(queue.RestoreScript.Constant("mark_lasts")))
}
