package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// Two hundred topics without a scheduler are one line, below the one that matters.
func TestProblemsOfOneKindFoldBelowWorseHarm(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 200 {
			name := fmt.Sprintf("a%03d", i)
			k := queue.NewKeys(s.Prefix, name)
			p.SAdd(ctx, queue.Registry(s.Prefix), name)
			p.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x")
			p.HSet(ctx, k.Groups(), "g", "25 -1 -1")
			p.ZAdd(ctx, k.Pending(), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "01M7Y3SQGNBVX5P66MY8JV56FH"})
		}
		return nil
	})
	require.NoError(t, err)
	s.bury(t, 3)
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	require.Equal(t, admin.DeadLetters, d.Problems[0].Kind)
	require.Equal(t, admin.Loses, d.Problems[0].Harm)
	lines := admin.FoldProblems(d.Problems)
	require.Equal(t, admin.DeadLetters, lines[0].Kind)
	require.Equal(t, 1, lines[0].Count)
	require.Empty(t, lines[0].Unfold)
	var folded admin.Folded
	for _, line := range lines {
		if line.Kind == admin.Unscheduled {
			require.Zero(t, folded.Count, "one line")
			folded = line
		}
	}
	require.Equal(t, 201, folded.Count)
	require.Equal(t, 201, folded.Topics)
	require.Equal(t, admin.Idle, folded.Harm)
	require.Equal(t, `Nobody does the due-time work of 201 topics. The worst: Nobody does the due-time work of topic "a000": run a subscriber or a scheduler.`, folded.Text)
	require.Equal(t, "doctor --kind=unscheduled", strings.Join(folded.Unfold, " "))
}

func TestWhatAnOperatorAcceptsIsIgnoredWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
	parts, err := partition.Topics("parcels", 3)
	require.NoError(t, err)
	parted := parts[1]
	for _, name := range []string{topic, parted, "other"} {
		k := queue.NewKeys(s.Prefix, name)
		require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), name).Err())
		require.NoError(t, s.Client.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x").Err())
		require.NoError(t, s.Client.HSet(ctx, k.Groups(), "a", "25 -1 -1").Err())
		require.NoError(t, s.Client.RPush(ctx, k.Ready("a"), "01M7Y3SQGNBVX5P66MY8JV56FH:1000").Err())
	}
	for _, wrong := range []admin.Ignored{
		{Kind: "nonsense", By: "ann", Why: "x"}, {Kind: admin.UnreadGroup, Why: "x"}, {Kind: admin.UnreadGroup, By: "ann"},
		{Kind: admin.UnreadGroup, Group: "a", By: "ann", Why: "x"}, {Kind: admin.UnreadGroup, Severity: "x", By: "ann", Why: "x"},
	} {
		require.ErrorIs(t, only(s.admin.Ignore(ctx, wrong)), admin.ErrInvalidArgument)
	}
	of := func(name string) *admin.Ignored {
		t.Helper()
		d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
		require.NoError(t, err)
		for i, p := range d.Problems {
			if p.Kind == admin.UnreadGroup && p.Topic == name {
				for _, after := range d.Problems[i:] {
					require.True(t, p.Ignored == nil || after.Ignored != nil, "what is ignored comes last")
				}
				return p.Ignored
			}
		}
		t.Fatal("the problem is not there")
		return nil
	}
	require.Nil(t, of(topic))
	did, err := s.admin.Ignore(ctx, admin.Ignored{Kind: "unread-group", Topic: "parcels", By: "ann@ops", Why: "it starts in May\nor June"})
	require.NoError(t, err)
	require.Equal(t, &did, of(parted), "all partitions")
	require.Contains(t, did.String(), `ignored by "ann@ops" since 20`)
	require.Nil(t, of(topic))
	_, err = s.admin.Ignore(ctx, admin.Ignored{Kind: admin.UnreadGroup, Topic: topic, Group: "a", Severity: admin.Notice, By: "bob", Why: "as a notice"})
	require.NoError(t, err)
	require.Nil(t, of(topic), "it is worse than what is accepted")
	_, err = s.admin.Ignore(ctx, admin.Ignored{Kind: admin.UnreadGroup, Topic: topic, Group: "a", Severity: admin.Warning, By: "bob", Why: "as a warning"})
	require.NoError(t, err)
	require.Equal(t, "bob", of(topic).By)
	require.Nil(t, of("other"))
	all, err := s.admin.IgnoredProblems(ctx)
	require.NoError(t, err)
	require.Len(t, all, 2)
	text, err := json.Marshal(all[0])
	require.NoError(t, err)
	require.Contains(t, string(text), `"kind":"unread group","topic":"orders","group":"a","severity":"warning","by":"bob","why":"as a warning"`)
	require.NoError(t, s.admin.Unignore(ctx, did))
	require.Nil(t, of(parted))
	require.ErrorIs(t, s.admin.Unignore(ctx, did), admin.ErrNotFound)
	require.NoError(t, only(s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})))
	all, err = s.admin.IgnoredProblems(ctx)
	require.NoError(t, err)
	require.Empty(t, all, "they go with the topic")
	for _, name := range []string{"parcels", "other"} {
		require.NoError(t, only(s.admin.DeleteTopic(ctx, name, admin.DeleteOptions{})))
	}
}

// A group is late as long as its subscriptions settle messages, and hung when they do not.
func TestAHungGroupNamesItsProcessAndALateOneDoesNot(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	sub := s.subscriber(t, "g", func(c *redisdelay.SubscriberConfig) { c.MaxInFlight, c.LeaseDuration = 2, time.Hour })
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	for i := range 20 {
		require.NoError(t, s.publisher(t).Publish(topic, text(fmt.Sprint(i))))
	}
	first := receive(t, messages)
	eventually(t, func() bool { return s.group(t, "g").InHand > 1 }, "")
	server.Advance(3 * time.Minute)
	kinds := func() (found []string) {
		d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
		require.NoError(t, err)
		for _, p := range d.Problems {
			if p.Kind == admin.Hung || p.Kind == admin.Late {
				found = append(found, string(p.Kind)+": "+p.Text)
			}
		}
		return found
	}
	found := kinds()
	require.Len(t, found, 1)
	require.Regexp(t, `^hung: Group "g" of topic "orders" is hung: it has \d messages in hand, the first for 3m\ds, and it has never settled any; `+
		`\d+ messages are ready, the first for 3m\ds\. Look at admin\.test on .+, process \d+, which has \d\.$`, found[0])
	page, err := s.admin.List(ctx, topic, admin.Query{State: admin.InHand, Group: "g"})
	require.NoError(t, err)
	require.Regexp(t, `^admin\.test on .+, process \d+$`, page.Messages[0].Places[0].Worker)
	got, err := s.admin.Get(ctx, topic, admin.ByID(page.Messages[0].ID))
	require.NoError(t, err)
	require.Equal(t, page.Messages[0].Places[0].Worker, got.Places[0].Worker)

	first.Nack()
	eventually(t, func() bool { return !s.group(t, "g").LastSettled.IsZero() }, "")
	found = kinds()
	require.Len(t, found, 1)
	require.Contains(t, found[0], `late: The subscribers of group "g" of topic "orders" do not keep up`)
}

func TestMemoryIsByTopicAndState(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction").Client(t), Prefix: "own"})
	s.register(t, "g")
	body := strings.Repeat("x", 10_000)
	for range 300 {
		require.NoError(t, s.publisher(t).Publish(topic, delayed(body, time.Hour)))
	}
	for range 20 {
		require.NoError(t, s.publisher(t).Publish(topic, text("short")))
	}
	use, err := s.admin.Memory(ctx, admin.MemoryOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, use.Looked)
	m := use.Topics[0]
	require.Equal(t, topic, m.Topic)
	require.Greater(t, m.Waiting, 300*10_000)
	require.Less(t, m.Ready, m.Waiting/20)
	require.Positive(t, m.Ready)
	require.Equal(t, m.Bytes, m.Waiting+m.Ready+m.InHand+m.Retrying+m.Dead+m.Other)
	require.NoError(t, s.Client.ConfigSet(ctx, "maxmemory", "6mb").Err())
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	var said string
	for _, p := range d.Problems {
		if p.Kind == admin.Memory {
			said = p.Text
			require.Equal(t, []string{"memory"}, p.Mend)
		}
	}
	require.Regexp(t, `consumed\. Topic "orders" takes the most, about \d\.\d MB, of which \d\.\d MB are of messages that wait\.$`, said)
}

func TestReasonsSayOnceWhatAllShareAndCanBeUsedAsShown(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		sub := s.subscriber(t, "a")
		messages, err := sub.Subscribe(ctx, topic)
		require.NoError(t, err)
		for i := range 6 {
			require.NoError(t, s.publisher(t).Publish(topic, text("x")))
			msg := receive(t, messages)
			code := []int{500, 500, 429}[i%3]
			redisdelay.DeadOnNack(msg, fmt.Errorf("deliver order %d: the partner answered %d, trace 4bf92f3577b34da6a3ce929d0e0e47%02d", 100+i, code, 10+i))
			msg.Nack()
		}
		eventually(t, func() bool { return s.group(t, "a").Dead == 6 }, "")
		reasons, err := s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "a"})
		require.NoError(t, err)
		require.Equal(t, `All begin with "deliver order #: the partner answered ".`, reasons.Shared())
		require.Len(t, reasons.Reasons, 2)
		require.Equal(t, "…500, trace #", reasons.Short(reasons.Reasons[0]))
		for i, want := range []int{4, 2} {
			for _, shown := range []string{reasons.Reasons[i].Reason, reasons.Short(reasons.Reasons[i])} {
				page, err := s.admin.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a", Filter: admin.Filter{Reason: shown}})
				require.NoError(t, err)
				require.Len(t, page.Messages, want, shown)
			}
		}
	})
}
