package admin_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

func TestDryRunCountsAndChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 1500)
		odd := admin.Bulk{Group: "a", DryRun: true, Filter: admin.Filter{Metadata: map[string]string{"kind": "odd"}}}
		for name, do := range map[string]func(admin.Bulk) (int, error){
			"requeue": func(b admin.Bulk) (int, error) { return s.admin.RequeueAll(ctx, topic, b) },
			"purge":   func(b admin.Bulk) (int, error) { return s.admin.PurgeDead(ctx, topic, b) },
			"move":    func(b admin.Bulk) (int, error) { return s.admin.MoveDead(ctx, topic, b) },
		} {
			n, err := do(odd)
			require.NoError(t, err, name)
			require.Equal(t, 750, n, name)
			limited := odd
			limited.Limit = 600
			n, err = do(limited)
			require.NoError(t, err, name)
			require.Equal(t, 600, n, name)
		}
		require.Equal(t, 1500, s.group(t, "a").Dead)
		require.ErrorIs(t, only(s.admin.Stats(ctx, "missing")), admin.ErrNotFound)
	})
}

func TestLimitTakesTheOldest(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 5)
		before := s.list(t, "a", admin.Dead)
		n, err := s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "a", Limit: 2})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, before[2:], s.list(t, "a", admin.Dead))
		n, err = s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a", Limit: 9})
		require.NoError(t, err)
		require.Equal(t, 3, n)
	})
}

func TestSpreadRequeuesEvenly(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 12)
		dead := s.list(t, "a", admin.Dead)
		began := s.stats(t).Now
		told := 0
		n, err := s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a", Spread: time.Hour, Limit: 10, Progress: func(admin.Progress) { told++ }})
		require.NoError(t, err)
		require.Equal(t, 10, n)
		require.Equal(t, 1, told)
		s.promote(t, "a")
		all := append(s.list(t, "a", admin.Ready), s.list(t, "a", admin.Retrying)...)
		require.Len(t, all, 10)
		for i, m := range all {
			require.Equal(t, dead[i].ID, m.ID)
			require.WithinDuration(t, began.Add(time.Duration(i)*6*time.Minute), m.Places[0].At, soon)
		}
		next := s.stats(t).NextLook
		require.WithinDuration(t, began.Add(6*time.Minute), next, soon, "the scheduler knows")
	})
}

func TestSpreadMovesEvenly(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 12)
		began := s.stats(t).Now
		n, err := s.admin.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "other", Spread: time.Hour, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, 10, n)
		page, err := s.admin.List(ctx, "other", admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		require.Len(t, page.Messages, 10)
		for i, m := range page.Messages {
			require.Equal(t, fmt.Sprintf("%05d", i), string(m.Payload))
			require.WithinDuration(t, began.Add(time.Duration(i)*6*time.Minute), m.Places[0].At, soon)
		}
	})
}

// promote is one look of a scheduler.
func (s *setup) promote(t *testing.T, groups ...string) {
	t.Helper()
	handle := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic)
	read, err := handle.Existing(ctx)
	require.NoError(t, err)
	require.Equal(t, groups, read.Names)
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), handle.PromoteCall(read, "nobody|1", time.Minute, true)))
}

func TestBulkOfBadArgumentsIsRefused(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	for want, bulk := range map[string]admin.Bulk{
		"Limit is -1, want 0 or more":                         {Limit: -1},
		"Spread is -1ns, want from 0":                         {Spread: -1},
		`Spread is set, and operation "purge" does not heed`:  {Spread: time.Hour},
		fmt.Sprintf("want from 0 to %v", redisdelay.MaxDelay): {Spread: redisdelay.MaxDelay + 1},
	} {
		_, err := s.admin.PurgeDead(ctx, topic, bulk)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, want)
	}
}

func TestDeadLettersByReason(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(10)...))
		reasons := []string{
			"nacked on the last of 25 deliveries: order 8812 not found", "nacked on the last of 3 deliveries: order 7 not found",
			"dial 10.0.0.1:6379: refused", "user 2f8e4a61-94d7-4c52-9b1c-6f0e1d3a5b70 is gone",
			"user 00000000-94d7-4c52-9b1c-6f0e1d3a5b70 is gone", "user 11111111-94D7-4c52-9b1c-6f0e1d3a5b70 is gone",
			"message 01M7Y3SQGNBVX5P66MY8JV56FH", "commit deadbeef01 at 0xFF", "a facade\xff", "commit 0123456789 at 0x0",
		}
		s.buryFor(t, 10, func(i int) string { return reasons[i] })
		var progress []admin.Progress
		got, err := s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "a", Progress: func(p admin.Progress) { progress = append(progress, p) }})
		require.NoError(t, err)
		require.Equal(t, []admin.Progress{{Looked: 10, Done: 10}}, progress)
		require.Equal(t, 10, got.Looked)
		require.Zero(t, got.Other)
		var told []string
		for _, r := range got.Reasons {
			told = append(told, fmt.Sprint(r.Count, " ", r.Reason))
			require.False(t, r.Newest.Before(r.Oldest))
			require.Equal(t, "x", string(r.Sample.Payload))
			require.NotEmpty(t, r.Sample.Places[0].Reason)
		}
		require.Equal(t, []string{
			"3 user # is gone", "2 commit # at #", "2 nacked on the last of # deliveries: order # not found",
			"1 a facade�", "1 dial #:#: refused", "1 message #",
		}, told)
		folded := got.Reasons[0]
		n, err := s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "a", DryRun: true, Filter: admin.Filter{FoldedReason: folded.Reason}})
		require.NoError(t, err)
		require.Equal(t, folded.Count, n)

		got, err = s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "a", Filter: admin.Filter{Reason: "user"}, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, 2, got.Looked)
		require.Len(t, got.Reasons, 1)
		require.ErrorIs(t, only(s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "unknown"})), admin.ErrNotFound)
	})
}

// A thousand reasons are told apart: memory does not grow with the number of dead letters.
func TestReasonsAreLimited(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		for part := range 2 {
			require.NoError(t, s.publisher(t).Publish(topic, messagesOf(600)...))
			s.buryFor(t, 600, func(i int) string {
				word := fmt.Sprintf("%04d", part*600+i)
				for d := range 10 {
					word = strings.ReplaceAll(word, fmt.Sprint(d), string(rune('a'+d)))
				}
				return word
			})
		}
		got, err := s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "a"})
		require.NoError(t, err)
		require.Len(t, got.Reasons, 1000)
		require.Equal(t, 200, got.Other)
		require.Equal(t, 1200, got.Looked)
	})
}

func TestMessageIsFoundByItsUUIDAmongPages(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, text("x"), text("y"), delayed("z", time.Hour)))
		find := func(state admin.State, uuid string) []admin.Message {
			page, err := s.admin.List(ctx, topic, admin.Query{State: state, Group: "a", Filter: admin.Filter{UUID: uuid}})
			require.NoError(t, err)
			return page.Messages
		}
		require.Equal(t, "y", string(find(admin.Ready, "uuid of y")[0].Payload))
		require.Len(t, find(admin.Ready, "uuid of y"), 1)
		require.Len(t, find(admin.Waiting, "uuid of z"), 1)
		require.Empty(t, find(admin.Ready, "uuid of z"))
		s.buryReady(t, 2)
		n, err := s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "a", Filter: admin.Filter{UUID: "uuid of x"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

func TestMessagesAreChosenByDelayID(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		named := func(payload string, d time.Duration) *message.Message {
			msg := delayed(payload, d)
			redisdelay.SetDelayID(msg, "name of "+payload, redisdelay.DelayIDReplace)
			return msg
		}
		require.NoError(t, s.publisher(t).Publish(topic, text("w"), named("x", 0), named("y", 0), named("z", time.Hour)))
		find := func(state admin.State, name string) (payloads []string) {
			page, err := s.admin.List(ctx, topic, admin.Query{State: state, Group: "a", Filter: admin.Filter{DelayID: name}})
			require.NoError(t, err)
			for _, m := range page.Messages {
				payloads = append(payloads, string(m.Payload))
			}
			return payloads
		}
		require.Equal(t, []string{"x"}, find(admin.Ready, "name of x"))
		require.Equal(t, []string{"z"}, find(admin.Waiting, "name of z"))
		require.Empty(t, find(admin.Waiting, "name of x"))
		s.buryReady(t, 3)
		n, err := s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "a", Filter: admin.Filter{DelayID: "name of x"}}) // reads no bodies
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []string{"y"}, find(admin.Dead, "name of y"))
	})
}

func TestOverviewHasTheStatsOfAllTopics(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t)
		sub := s.subscriber(t, "a")
		names := map[string]bool{}
		for i := range 140 { // servers may return a set of up to 128 at once
			name := fmt.Sprintf("topic %03d", i)
			names[name] = true
			require.NoError(t, sub.SubscribeInitialize(name))
			require.NoError(t, p.Publish(name, text("x")))
		}
		for i := range 110 {
			require.NoError(t, s.subscriber(t, fmt.Sprintf("group %03d", i)).SubscribeInitialize("topic 007"))
		}
		require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), "gone").Err())
		other := queue.NewKeys(s.Prefix, "newer")
		require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), "newer").Err())
		require.NoError(t, s.Client.HSet(ctx, other.Meta(), "layout", "3", "groups", "x").Err())
		defer s.Client.Del(ctx, other.Meta())

		cursor, pages := "", 0
		for {
			stats, next, err := s.admin.Overview(ctx, cursor, 50)
			require.NoError(t, err)
			pages++
			for _, got := range stats {
				switch got.Topic {
				case "gone":
					require.ErrorIs(t, got.Err, admin.ErrNotFound)
					continue
				case "newer":
					require.ErrorIs(t, got.Err, admin.ErrLayout)
					continue
				}
				want, err := s.admin.Stats(ctx, got.Topic)
				require.NoError(t, err)
				want.Now = got.Now
				require.Equal(t, want, got)
				delete(names, got.Topic)
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		require.Empty(t, names)
		require.Greater(t, pages, 1)
	})
}

// The Admin knows the groups of each topic from the page before.
func TestOverviewSeesGroupsAndTopicsThatCameAndWent(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p, sub := s.publisher(t), s.subscriber(t, "a")
		for _, topic := range []string{"same", "grows", "shrinks", "goes", "comes again"} {
			require.NoError(t, sub.SubscribeInitialize(topic))
			require.NoError(t, p.Publish(topic, text("x")))
		}
		require.NoError(t, s.subscriber(t, "b").SubscribeInitialize("shrinks"))
		overview := func() map[string]admin.Stats {
			page, next, err := s.admin.Overview(ctx, "", 100)
			require.NoError(t, err)
			require.Empty(t, next)
			all := map[string]admin.Stats{}
			for _, stats := range page {
				all[stats.Topic] = stats
			}
			return all
		}
		before := overview()
		require.Len(t, before, 5)

		require.NoError(t, p.Publish("same", text("y")))
		for i := range 110 { // they are counted in more than one step
			require.NoError(t, s.subscriber(t, fmt.Sprintf("group %03d", i)).SubscribeInitialize("grows"))
		}
		require.NoError(t, last(s.admin.DeleteGroup(ctx, "shrinks", "b", admin.DeleteOptions{})))
		require.NoError(t, last(s.admin.DeleteTopic(ctx, "goes", admin.DeleteOptions{})))
		require.NoError(t, last(s.admin.DeleteTopic(ctx, "comes again", admin.DeleteOptions{})))
		require.NoError(t, s.subscriber(t, "c").SubscribeInitialize("comes again"))
		require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), "goes").Err())

		for range 2 {
			after := overview()
			require.Len(t, after, 5)
			require.ErrorIs(t, after["goes"].Err, admin.ErrNotFound)
			delete(after, "goes")
			for topic, got := range after {
				want, err := s.admin.Stats(ctx, topic)
				require.NoError(t, err)
				want.Now = got.Now
				require.Equal(t, want, got)
			}
			require.Equal(t, before["same"].Messages+1, after["same"].Messages)
			require.Len(t, after["grows"].Groups, 111)
			require.Len(t, after["shrinks"].Groups, 1)
			require.Equal(t, "c", after["comes again"].Groups[0].Group)
		}
	})
}

// Memories of a topic do not hide that keys are lost or of a wrong type.
func TestOverviewSaysWhatRedisHasNow(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a", "b")
		overview := func() admin.Stats {
			page, _, err := s.admin.Overview(ctx, "", 100)
			require.NoError(t, err)
			require.Len(t, page, 1)
			return page[0]
		}
		require.Len(t, overview().Groups, 2)

		require.NoError(t, s.Client.HDel(ctx, s.keys.Groups(), "b").Err())
		got := overview()
		require.NoError(t, got.Err)
		require.Len(t, got.Groups, 1)
		require.Equal(t, "a", got.Groups[0].Group)

		require.NoError(t, s.Client.Del(ctx, s.keys.Meta(), s.keys.Groups(), s.keys.Stats("a"), s.keys.Stats("b")).Err())
		require.NoError(t, s.Client.Set(ctx, s.keys.Paused(), "of another program", 0).Err())
		require.ErrorIs(t, overview().Err, admin.ErrNotFound)
		require.NoError(t, s.Client.Del(ctx, s.keys.Paused()).Err())
	})
}

func TestManyOverviewsAtATime(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		var counting sync.WaitGroup
		for range 4 {
			counting.Go(func() {
				for range 20 {
					page, _, err := s.admin.Overview(ctx, "", 100)
					if assert.NoError(t, err) && assert.Len(t, page, 1) {
						assert.NoError(t, page[0].Err)
						assert.NotEmpty(t, page[0].Groups)
					}
				}
			})
		}
		for i := range 10 {
			s.register(t, fmt.Sprint("more ", i))
		}
		counting.Wait()
		page, _, err := s.admin.Overview(ctx, "", 100)
		require.NoError(t, err)
		require.Len(t, page[0].Groups, 11)
	})
}
