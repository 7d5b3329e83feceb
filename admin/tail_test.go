package admin_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// tailOnce looks at a topic once.
func tailOnce(ctx context.Context, a *admin.Admin, topic string) error {
	ends, end := context.WithCancel(ctx)
	defer end()
	_, err := a.Tail(ends, topic, func(admin.Message) bool { return true }, admin.TailOptions{Began: end})
	return err
}

// tailed tails a topic until it has shown so many messages, and returns their payloads.
func tailed(t *testing.T, s *setup, topic string, n int, began func()) (shown []string, told admin.Tailed) {
	t.Helper()
	ends, end := context.WithTimeout(ctx, time.Minute)
	defer end()
	told, err := s.admin.Tail(ends, topic, func(m admin.Message) bool {
		require.NoError(t, m.Err)
		require.Equal(t, "uuid of "+string(m.Payload), m.UUID)
		require.False(t, m.Places[0].At.IsZero())
		shown = append(shown, string(m.Payload))
		return len(shown) < n
	}, admin.TailOptions{Began: began})
	require.NoError(t, err)
	require.NoError(t, ends.Err(), "shown: %q", shown)
	require.Equal(t, len(shown), told.Shown)
	return shown, told
}

func TestTailShowsWhatBecomesDueFromThenOn(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "idle", "paused")
		p := s.publisher(t)
		require.NoError(t, p.Publish(topic, text("before"), delayed("long after", time.Hour)))
		messages := s.subscribe(t, "busy") // it handles all at once
		go func() {
			for msg := range messages {
				msg.Ack()
			}
		}()
		shown, _ := tailed(t, s, topic, 4, func() {
			require.NoError(t, p.Publish(topic, text("at once"), delayed("soon", 200*time.Millisecond), delayed("later", 700*time.Millisecond), delayed("last", 900*time.Millisecond)))
		})
		require.Equal(t, []string{"at once", "soon", "later", "last"}, shown)
	})
}

// A delayed message is shown even if all groups are done with it before the next look, and one that
// is cancelled or moved is not.
func TestTailShowsDelayedMessagesWhateverBecomesOfThem(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		messages := s.subscribe(t, "busy")
		go func() {
			for msg := range messages {
				msg.Ack()
			}
		}()
		p := s.publisher(t)
		var all []*message.Message
		named := func(payload string, d time.Duration) {
			msg := delayed(payload, d)
			redisdelay.SetDelayID(msg, payload, redisdelay.DelayIDReplace)
			all = append(all, msg)
		}
		// Looks wait for what is done in Began. What becomes due meanwhile may be gone by the next.
		named("cancelled", 2*time.Second)
		named("moved", 2*time.Second)
		for i := range 12 {
			named(fmt.Sprint(i), time.Duration(2000+50*i)*time.Millisecond)
		}
		shown, told := tailed(t, s, topic, 12, func() {
			require.NoError(t, p.Publish(topic, all...))
			require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID("cancelled")))
			require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByDelayID("moved"), admin.In(time.Hour)))
		})
		slices.Sort(shown)
		require.Equal(t, []string{"0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"}, shown)
		require.LessOrEqual(t, told.Unseen, 1, "the one that was cancelled")
	})
}

// A topic without a group keeps what waits in it, and gets no group.
func TestTailOfATopicWithoutAGroupTakesNothing(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t)
		require.NoError(t, p.Publish(topic, text("1"), text("2")))
		shown, _ := tailed(t, s, topic, 1, func() { require.NoError(t, p.Publish(topic, text("3"))) })
		require.Equal(t, []string{"3"}, shown)
		require.Empty(t, s.stats(t).Groups)
		messages := s.subscribe(t, "first")
		for _, want := range []string{"1", "2", "3"} {
			msg := receive(t, messages)
			require.Equal(t, want, string(msg.Payload))
			msg.Ack()
		}
	})
}

// Tail counts what it cannot have seen.
func TestTailCountsWhatItDoesNotSee(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		messages := s.subscribe(t, "busy")
		p := s.publisher(t)
		_, told := tailed(t, s, topic, 1, func() {
			for range 20 {
				require.NoError(t, p.Publish(topic, text("unseen")))
				msg := receive(t, messages)
				require.True(t, msg.Ack())
			}
			eventually(t, func() bool { return s.stats(t).Messages == 0 }, "all are done with")
			require.NoError(t, p.Publish(topic, delayed("seen", 500*time.Millisecond)))
		})
		require.Equal(t, admin.Tailed{Shown: 1, Unseen: 20}, told)
	})
}

// A message that is due is shown, and may not be ready yet.
func TestTailCountsWhatNobodyHasPromoted(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		sub := s.subscriber(t, "busy")
		messages, err := sub.Subscribe(ctx, topic)
		require.NoError(t, err)
		p := s.publisher(t)
		_, told := tailed(t, s, topic, 1, func() {
			for range 2 {
				require.NoError(t, p.Publish(topic, text("unseen")))
				require.True(t, receive(t, messages).Ack())
			}
			eventually(t, func() bool { return s.stats(t).Messages == 0 }, "all are done with")
			require.NoError(t, sub.Close())
			require.NoError(t, p.Publish(topic, delayed("seen", 50*time.Millisecond)))
		})
		require.Equal(t, admin.Tailed{Shown: 1, Unseen: 2}, told)
	})
}

func TestTailOfWhatIsNotThere(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		require.ErrorIs(t, tailOnce(ctx, s.admin, "missing"), admin.ErrNotFound)
		require.ErrorIs(t, tailOnce(ctx, s.admin, ""), admin.ErrInvalidTopic)
	})
}

// changes are the methods that change something. All others only look.
var changes = []string{"AddGroup", "Cancel", "CancelAll", "DeleteDead", "DeleteGroup", "DeleteIdleGroups", "DeleteTopic", "Ignore", "ImportDead", "Kill", "Move", "MoveDead", "Pause",
	"PauseSchedule", "PurgeDead", "Record", "Repair", "ReleaseWorker", "Requeue", "RequeueAll", "Reschedule", "RescheduleAll", "ResetHistory", "ResetLimit", "Restore", "Resume", "ResumeSchedule", "RemoveSchedule",
	"RunSchedule", "SetHistory", "SetLimit", "SetPartitions", "Unignore"}

// A method that only looks changes no key, nor does a dry run.
func TestLooksChangeNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "looks"}
	w := newTorn(t, setupOn(t, s), "a", "b")
	a := w.admin
	require.NoError(t, a.Record(ctx, admin.Act{By: "ann", Action: "pause"}))
	looks := map[string]func() error{
		"FindActs":                 func() error { return last(a.FindActs(ctx, admin.ActFilter{})) },
		"Acts":                     func() error { _, _, err := a.Acts(ctx, "", 0); return err },
		"Check":                    func() error { return last(a.Check(ctx, topic)) },
		"DeadReasons":              func() error { return last(a.DeadReasons(ctx, topic, admin.Bulk{Group: "a"})) },
		"Diagnose":                 func() error { return last(a.Diagnose(ctx, admin.DiagnoseOptions{Deep: true})) },
		"Find":                     func() error { return last(a.Find(ctx, admin.Search{Filter: admin.Filter{Any: "x"}})) },
		"History":                  func() error { return last(a.History(ctx, topic, admin.HistoryFilter{})) },
		"IgnoredProblems":          func() error { return last(a.IgnoredProblems(ctx)) },
		"Memory":                   func() error { return last(a.Memory(ctx, admin.MemoryOptions{})) },
		"Get":                      func() error { return last(a.Get(ctx, topic, admin.ByID(w.id["retrying"]))) },
		"GroupsWithoutSubscribers": func() error { return last(a.GroupsWithoutSubscribers(ctx, topic, 0)) },
		"List":                     func() error { return last(a.List(ctx, topic, admin.Query{State: admin.Ready, Group: "b"})) },
		"Overview":                 func() error { _, _, err := a.Overview(ctx, "", 0); return err },
		"Plain":                    func() error { return last(a.Plain(ctx, topic)) },
		"Ready":                    func() error { return last(a.Ready(ctx, topic)) },
		"Schedules":                func() error { return last(a.Schedules(ctx, topic)) },
		"Stats":                    func() error { return last(a.Stats(ctx, topic)) },
		"Tail":                     func() error { return tailOnce(ctx, a, topic) },
		"Topics":                   func() error { _, _, err := a.Topics(ctx, "", 0); return err },
		"Upcoming": func() error {
			return last(a.Upcoming(ctx, topic, admin.Load{Width: time.Minute, Buckets: 2, Group: "a"}))
		},
		"Workers": func() error { return last(a.Workers(ctx, topic)) },

		"DeleteGroup": func() error { return last(a.DeleteGroup(ctx, topic, "a", admin.DeleteOptions{DryRun: true})) },
		"DeleteIdleGroups": func() error {
			return last(a.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Minute, DryRun: true}))
		},
		"RemoveSchedule": func() error {
			err := last(a.RemoveSchedule(ctx, topic, "none", admin.DeleteOptions{DryRun: true}))
			require.ErrorIs(w.t, err, admin.ErrNotFound)
			return nil
		},
		"DeleteTopic": func() error { return last(a.DeleteTopic(ctx, topic, admin.DeleteOptions{DryRun: true})) },
		"Move": func() error {
			return last(a.Move(ctx, topic, admin.Moving{To: "to", Create: true, DryRun: true}))
		},
		"ImportDead": func() error {
			return last(a.ImportDead(ctx, topic, admin.ReadLetters([]byte(`{"id":"1","group":"a","uuid":"u","died_at":"2026-11-01T00:00:00.000Z"}`)), admin.Import{DryRun: true}))
		},
		"MoveDead":   func() error { return last(a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "to", DryRun: true})) },
		"PurgeDead":  func() error { return last(a.PurgeDead(ctx, topic, admin.Bulk{Group: "a", DryRun: true})) },
		"RequeueAll": func() error { return last(a.RequeueAll(ctx, topic, admin.Bulk{Group: "a", DryRun: true})) },
		"Restore": func() error {
			page, err := a.List(ctx, topic, admin.Query{State: admin.Retrying, Group: "a", Whole: true})
			require.NoError(w.t, err)
			gone := page.Messages[0]
			gone.ID = strings.Repeat("0", 26)
			would, err := a.Restore(ctx, topic, listed([]admin.Message{page.Messages[0], gone}), admin.Restoring{DryRun: true})
			require.Equal(w.t, admin.Restored{Messages: 1, There: 1}, would)
			return err
		},
	}
	before := w.contents()
	methods := reflect.TypeFor[*admin.Admin]()
	for i := range methods.NumMethod() {
		name := methods.Method(i).Name
		do, known := looks[name]
		require.True(t, known || slices.Contains(changes, name), "%s is new: does it change something?", name)
		if do == nil {
			continue
		}
		if err := do(); err != nil {
			require.ErrorIs(t, err, admin.ErrNotFound, name)
		}
		require.Equal(t, before, w.contents(), name)
	}
}
