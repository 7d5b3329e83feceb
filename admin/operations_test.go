package admin_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// The first thing that a program offers deletes nothing, and no row lacks what a program shows.
func TestTableOfOperations(t *testing.T) {
	t.Parallel()
	all := admin.Operations()
	require.False(t, all[0].Deletes)
	names := map[string]bool{}
	for _, o := range all {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, o.Name)
		require.False(t, names[o.Name], o.Name)
		names[o.Name] = true
		require.Regexp(t, `^[a-z].*[a-z]$`, o.Verb)
		require.Regexp(t, `^[a-z].*[^s]$`, o.Unit)
		require.Regexp(t, `^[A-Z].*\.$`, o.Effect)
		require.Contains(t, []admin.Subject{admin.OfGroup, admin.OfTopic, admin.OfSchedule}, o.Of)
		same, ok := admin.OperationNamed(o.Name)
		require.True(t, ok)
		require.Equal(t, o.Name, same.Name)
	}
	_, ok := admin.OperationNamed("")
	require.False(t, ok)
	all[0].Name = "changed"
	require.Equal(t, "requeue", admin.Operations()[0].Name, "the table is nobody's to change")
}

func TestTableOfOperationsInDocumentsIsTrue(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/control.md")
	require.NoError(t, err)
	var table strings.Builder
	mark := func(is bool) string {
		if is {
			return "yes |"
		}
		return "|"
	}
	for _, o := range admin.Operations() {
		state := "all"
		if o.State != "" {
			state = "`" + string(o.State) + "`"
		}
		line := fmt.Sprintf("| `%s` | %s | %s | %s | %s %s %s %s %s |\n", o.Name, o.Unit, o.Of, state,
			mark(o.Spreads), mark(o.Moves), mark(o.Deletes), mark(o.Partitions), o.Effect)
		table.WriteString(line)
	}
	require.Contains(t, string(text), table.String())
}

// An operation refuses the settings that its row does not have, and nothing has changed then.
func TestOperationsHeedWhatTheTableSays(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 3)
		require.NoError(t, s.publisher(t).Publish(topic, delayed("first", time.Hour), delayed("second", time.Hour)))
		for _, o := range admin.Operations() {
			for setting, heeded := range map[string]bool{
				"Group": o.Of == admin.OfGroup, "Schedule": o.Of == admin.OfSchedule, "To": o.Moves, "Spread": o.Spreads,
				"Filter": o.State != "", "Limit": o.State != "", "States": o.Waits, "Listed": o.Waits, "When": o.Times, "By": o.Times,
			} {
				for _, dry := range []bool{true, false} {
					if heeded && !dry {
						continue // see the tests of what they do
					}
					bulk := admin.Bulk{DryRun: dry}
					if o.Of == admin.OfGroup {
						bulk.Group = "a"
					}
					if o.Of == admin.OfSchedule {
						bulk.Schedule = "s"
					}
					switch setting {
					case "Group":
						bulk.Group = "a"
					case "Schedule":
						bulk.Schedule = "s"
					case "To":
						bulk.To = "other"
					case "Spread":
						bulk.Spread = time.Hour
					case "Filter":
						bulk.Filter.IDs = map[string]bool{} // empty, which is not absent
					case "Limit":
						bulk.Limit = 1
					case "States":
						bulk.States = []admin.State{admin.Waiting}
					case "Listed":
						bulk.Listed = listed(nil)
					case "When":
						bulk.When = admin.In(time.Hour)
					case "By":
						bulk.By = time.Hour
					}
					n, err := o.Run(ctx, s.admin, topic, bulk)
					if heeded && o.Of != admin.OfSchedule {
						require.NoError(t, err, "%s with %s", o.Name, setting)
						all := 3
						if o.Waits {
							all = 2
						}
						require.Equal(t, map[string]int{"Filter": 0, "Listed": 0, "Limit": 1, "Group": all, "To": all, "Spread": all, "States": all, "When": all, "By": all}[setting], n)
						continue
					}
					if !heeded {
						require.ErrorIs(t, err, admin.ErrInvalidArgument, "%s with %s", o.Name, setting)
						require.ErrorContains(t, err, setting+" is set")
					}
				}
			}
			require.Equal(t, 3, s.group(t, "a").Dead, o.Name)
			if o.Of == admin.OfSchedule {
				err := only(o.Run(ctx, s.admin, topic, admin.Bulk{DryRun: true}))
				require.ErrorIs(t, err, admin.ErrInvalidArgument)
				require.ErrorContains(t, err, "needs a Schedule")
			}
		}
		require.ErrorIs(t, only(admin.Operation{Name: "x"}.Run(ctx, s.admin, topic, admin.Bulk{})), admin.ErrInvalidArgument)
		require.ErrorIs(t, only(s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "a", Spread: time.Hour})), admin.ErrInvalidArgument)
	})
}

func TestOperationsDoWhatTheTableSays(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		for _, o := range admin.Operations() {
			if o.Of == admin.OfSchedule {
				continue // TestSchedules
			}
			s.bury(t, 2)
			require.NoError(t, s.publisher(t).Publish(topic, delayed("first", time.Hour), delayed("second", time.Hour)))
			bulk := admin.Bulk{DryRun: true}
			if o.Of == admin.OfGroup {
				bulk.Group = "a"
			}
			would, err := o.Run(ctx, s.admin, topic, bulk) // a dry run needs no target
			require.NoError(t, err, o.Name)
			bulk.DryRun = false
			if o.Moves {
				require.ErrorIs(t, only(o.Run(ctx, s.admin, topic, bulk)), admin.ErrInvalidTopic)
				bulk.To = "other"
			}
			before := s.stats(t).Messages
			n, err := o.Run(ctx, s.admin, topic, bulk)
			require.NoError(t, err, o.Name)
			require.Equal(t, would, n, o.Name)
			require.GreaterOrEqual(t, n, 2, o.Name)
			left := 0
			if after, err := s.admin.Stats(ctx, topic); err == nil {
				left = after.Messages
			}
			if o.Deletes {
				require.Equal(t, before-n, left, o.Name)
			} else {
				require.Equal(t, before, left, o.Name)
			}
			_, err = s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})
			if o.Of != admin.OfTopic {
				require.NoError(t, err)
			}
		}
	})
}

func TestOperationsOnSingleMessages(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 2)
		singles := 0
		for _, o := range admin.Operations() {
			message := admin.GroupMessage{Group: "a", ID: "unknown"}
			want := admin.ErrInvalidArgument
			if o.Single {
				singles++
				require.NoError(t, o.RunOne(ctx, s.admin, topic, admin.GroupMessage{Group: "a", ID: s.list(t, "a", admin.Dead)[0].ID}))
				want = admin.ErrNotFound
			}
			require.ErrorIs(t, o.RunOne(ctx, s.admin, topic, message), want, o.Name)
		}
		require.Equal(t, 2, singles)
		require.Zero(t, s.group(t, "a").Dead)
	})
}

// The pause of a topic and that of its default group are two pauses, whatever names are empty.
func TestPauseOfTheTopicAndOfTheDefaultGroup(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "")
		s.register(t, "other")
		pauses := func() (whole, ofDefault, ofOther bool) {
			stats := s.stats(t)
			for _, g := range stats.Groups {
				if g.Group == redisdelay.DefaultConsumerGroup {
					ofDefault = g.Pause != nil
				} else {
					ofOther = g.Pause != nil
				}
			}
			return stats.Pause != nil, ofDefault, ofOther
		}
		require3 := func(whole, ofDefault, ofOther bool) {
			t.Helper()
			w, d, o := pauses()
			require.Equal(t, [3]bool{whole, ofDefault, ofOther}, [3]bool{w, d, o})
		}
		pause, err := s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("")})
		require.NoError(t, err)
		require.Equal(t, "default", pause.Group)
		require3(false, true, false)
		was, err := s.admin.Resume(ctx, topic, admin.ResumeOptions{})
		require.NoError(t, err)
		require.False(t, was, "the topic was not paused")
		require3(false, true, false)

		pause, err = s.admin.Pause(ctx, topic, admin.PauseOptions{})
		require.NoError(t, err)
		require.Empty(t, pause.Group)
		require3(true, true, false)
		was, err = s.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup(redisdelay.DefaultConsumerGroup)})
		require.NoError(t, err)
		require.True(t, was)
		require3(true, false, false)
		was, err = s.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("")})
		require.NoError(t, err)
		require.False(t, was)
		require3(true, false, false)
	})
	require.Equal(t, "the topic", admin.Scope{}.String())
	require.Equal(t, `group "default"`, admin.InGroup("").String())
	require.Equal(t, admin.InGroup("default"), admin.InGroup(""))
}

// A partitioned topic has one entry, whose schedules are those of all partitions.
func TestSchedulesOfAPartitionedTopic(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := newPartitioned(t, s)
		for i, name := range []string{"a", "b"} {
			record := fmt.Sprintf("1 %d 0 0 0 0 3 0 0 - - - %s", time.Now().UnixMilli(), `{"spec":"@hourly","zone":"UTC","misfire":"last"}`)
			keys := queue.NewKeys(s.Prefix, p.plain[i])
			require.NoError(t, s.Client.HSet(ctx, keys.Schedules(), queue.EncodeName(name), record).Err())
		}
		all, err := s.admin.Schedules(ctx, topic, p.plain[1], p.plain[2])
		require.NoError(t, err)
		require.Len(t, all, 3)
		for i, want := range [][]string{{p.plain[0] + " a", p.plain[1] + " b"}, {p.plain[1] + " b"}, nil} {
			var got []string
			for _, one := range all[i].Schedules {
				got = append(got, one.Topic+" "+one.Name)
			}
			require.Equal(t, want, got)
			require.NoError(t, all[i].Err)
			require.False(t, all[i].Now.IsZero())
		}
		require.Equal(t, topic, all[0].Topic)
	})
}

func TestOperationsOnPartitionedTopics(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := newPartitioned(t, s)
		for _, o := range admin.Operations() {
			bulk := admin.Bulk{DryRun: true}
			if o.Of == admin.OfGroup {
				bulk.Group = "audit"
			}
			if o.Of == admin.OfSchedule {
				bulk.Schedule = "daily"
			}
			_, err := o.Run(ctx, p.admin, topic, bulk)
			if o.Partitions {
				require.NoError(t, err, o.Name)
			} else {
				require.ErrorIs(t, err, admin.ErrNotFound, o.Name)
			}
		}
	})
}
