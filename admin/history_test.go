package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func keeping(c *redisdelay.SubscriberConfig) { c.HistoryRetention, c.MaxHistory = time.Hour, 100 }

// history returns all lines that fit, newest first.
func (s *setup) history(t *testing.T, f admin.HistoryFilter) (lines []admin.Ended) {
	t.Helper()
	for {
		page, err := s.admin.History(ctx, topic, f)
		require.NoError(t, err)
		lines = append(lines, page.Ended...)
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	return lines
}

func TestWhatBecameOfAMessageIsKnown(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.subscribe(t, "plain")
		messages := s.subscribe(t, "a", keeping, testkit.AtOnce)
		msg := text("acked")
		msg.Metadata.Set(redisdelay.DelayIDKey, "order 4711")
		testkit.Publish(t, s.publisher(t), topic, msg)
		receive(t, messages).Nack()
		receive(t, messages).Ack()
		eventually(t, func() bool { return len(s.history(t, admin.HistoryFilter{})) == 1 }, "a line")
		line := s.history(t, admin.HistoryFilter{DelayID: "order 4711"})[0]
		require.Equal(t, "acked", line.How)
		require.Equal(t, "a", line.Group)
		require.Equal(t, msg.UUID, line.UUID)
		require.Equal(t, 2, line.Deliveries)
		require.NotEmpty(t, line.Host)
		require.True(t, line.FirstDelivery.Before(line.LastDelivery) || line.FirstDelivery.Equal(line.LastDelivery))
		require.False(t, line.DueAt.IsZero())
		require.Contains(t, line.String(), "after 2 deliveries")
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(report.Findings, func(f admin.Finding) bool { return f.Kind == "key" }), "a history expires: %+v", report.Findings)
		for _, f := range []admin.HistoryFilter{{ID: line.ID}, {UUID: line.UUID}, {Name: line.ID}, {Name: line.UUID}, {Name: line.DelayID}, {Group: "a"}, {From: line.At.Add(-time.Minute), To: line.At.Add(time.Minute)}} {
			require.Len(t, s.history(t, f), 1, "%+v", f)
		}
		for _, f := range []admin.HistoryFilter{{ID: "x"}, {UUID: "x"}, {DelayID: "x"}, {Name: "x"}, {Group: "plain"}, {From: line.At.Add(time.Minute)}, {To: line.At.Add(-time.Minute)}} {
			require.Empty(t, s.history(t, f), "%+v", f)
		}
	})
}

// Find reads no more lines than it may, and says so.
func TestFindReadsHistoriesWithinItsBounds(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		messages := s.subscribe(t, "a", keeping, testkit.AtOnce)
		s.subscribe(t, "b")
		for range 5 {
			msg := text("x")
			msg.Metadata.Set(redisdelay.DelayIDKey, "order 4711")
			testkit.Publish(t, s.publisher(t), topic, msg)
			receive(t, messages).Ack()
		}
		eventually(t, func() bool { return len(s.history(t, admin.HistoryFilter{})) == 5 }, "all lines")
		for _, f := range []admin.Filter{{Any: "order 4711"}, {DelayID: "order 4711"}} {
			found, err := s.admin.Find(ctx, admin.Search{Filter: f})
			require.NoError(t, err)
			require.Len(t, found.Past, 5)
			require.Equal(t, topic, found.Past[0].Topic)
			require.False(t, found.Past[0].At.Before(found.Past[4].At), "newest first")
			require.Equal(t, admin.SearchedHistories{Asked: true, Lines: 5, Keeping: 1, Without: 1}, found.Histories)
		}
		for _, q := range []admin.Search{{Limit: 3}, {Most: 3}} {
			q.Filter.DelayID = "order 4711"
			found, err := s.admin.Find(ctx, q)
			require.NoError(t, err)
			require.Len(t, found.Past, 3)
			require.Contains(t, found.Histories.LeftOut, "older lines: ")
			require.Contains(t, strings.Join(found.Explain(), " "), "Left out of the histories: older lines")
		}
		found, err := s.admin.Find(ctx, admin.Search{Filter: admin.Filter{DelayID: "order 4711", Metadata: map[string]string{"a": "b"}}})
		require.NoError(t, err)
		require.Equal(t, admin.SearchedHistories{}, found.Histories, "lines have no metadata")
	})
}

func TestHistoryIsReadPageByPage(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		messages := s.subscribe(t, "a", keeping, testkit.AtOnce)
		others := s.subscribe(t, "b", keeping)
		const many = 25
		for i := range many {
			testkit.Publish(t, s.publisher(t), topic, text(fmt.Sprint(i)))
			receive(t, messages).Ack()
			receive(t, others).Ack()
		}
		eventually(t, func() bool { return len(s.history(t, admin.HistoryFilter{})) == 2*many }, "all lines")
		require.Equal(t, s.history(t, admin.HistoryFilter{Limit: 1000}), s.history(t, admin.HistoryFilter{Limit: 7}), "each line is in one page")
		page, err := s.admin.History(ctx, topic, admin.HistoryFilter{Limit: 5})
		require.NoError(t, err)
		require.Equal(t, 2*6, page.Looked, "no more than the page needs")
		_, err = s.admin.History(ctx, topic, admin.HistoryFilter{Cursor: "x"})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		_, err = s.admin.History(ctx, "none", admin.HistoryFilter{})
		require.ErrorIs(t, err, admin.ErrNotFound)
	})
}

func TestAnOperatorSetsAHistoryThatSubscribersKeep(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		did, err := s.admin.SetHistory(ctx, topic, "a", admin.History{Retention: time.Hour})
		require.NoError(t, err)
		set := admin.GroupHistory{History: admin.History{Retention: time.Hour, Max: 10_000}, Set: true}
		require.Equal(t, admin.HistoryChange{Group: "a", After: set}, did)
		require.NoError(t, s.subscriber(t, "a", keeping).SubscribeInitialize(topic))
		set.Asked = admin.History{Retention: time.Hour, Max: 100}
		require.Equal(t, set, s.group(t, "a").History)
		did, err = s.admin.ResetHistory(ctx, topic, "a")
		require.NoError(t, err)
		require.Equal(t, admin.GroupHistory{History: set.Asked, Asked: set.Asked}, did.After)
		_, err = s.admin.SetHistory(ctx, topic, "a", admin.History{Retention: -1, Max: -1})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, "Retention is -1ns, must be from 1s")
		require.ErrorContains(t, err, "Max is -1, must be from 1")
		_, err = s.admin.SetHistory(ctx, topic, "none", admin.History{Retention: time.Hour})
		require.ErrorIs(t, err, admin.ErrNotFound)
	})
}

func TestDoctorTellsOfAHistoryWithGaps(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		stats := queue.NewKeys(s.Prefix, topic).Stats("a")
		ask := func(ago time.Duration) []string {
			require.NoError(t, s.Client.HSet(ctx, stats, "history_failed", 3, "history_failed_at", time.Now().Add(-ago).UnixMilli()).Err())
			d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: []string{topic}})
			require.NoError(t, err)
			var said []string
			for _, p := range ofKind(d.Problems, admin.LostHistory) {
				said = append(said, p.Text)
			}
			return said
		}
		said := ask(time.Minute)
		require.Len(t, said, 1)
		require.Contains(t, said[0], `3 lines of the history of group "a" of topic`)
		require.Contains(t, said[0], "lacks one of +hstrlen +pexpire +xadd +xlen +xtrim")
		require.Empty(t, ask(25*time.Hour))
		require.Equal(t, 3, s.group(t, "a").Counters.HistoryFailed)
	})
}
