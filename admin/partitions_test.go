package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

const parts = 3

// partitioned is a topic of three partitions with two groups. Six messages with delay IDs wait, two
// in each partition.
type partitioned struct {
	*setup
	plain []string
	names []string // the delay IDs; i is in partition i % parts
}

func newPartitioned(t *testing.T, s *setup) *partitioned {
	t.Helper()
	p := &partitioned{setup: s}
	var err error
	p.plain, err = partition.Topics(topic, parts)
	require.NoError(t, err)
	publisher, err := partition.NewPublisher(partition.PublisherConfig{Partitions: parts,
		Publisher: redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	for _, plain := range p.plain {
		for _, group := range []string{"audit", "billing"} {
			require.NoError(t, s.subscriber(t, group).SubscribeInitialize(plain))
		}
	}
	for i := 0; len(p.names) < 2*parts; i++ {
		name := fmt.Sprint("name ", i)
		plain, err := partition.TopicOf(topic, parts, name)
		require.NoError(t, err)
		if plain != p.plain[len(p.names)%parts] {
			continue
		}
		msg := delayed(name, time.Duration(len(p.names)+1)*time.Hour)
		redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
		require.NoError(t, publisher.Publish(topic, msg))
		p.names = append(p.names, name)
	}
	return p
}

// whole returns the Stats of the topic.
func (p *partitioned) whole(t *testing.T) admin.Stats {
	t.Helper()
	stats, err := p.admin.Stats(ctx, topic)
	require.NoError(t, err)
	require.Len(t, stats.Partitions, parts)
	return stats
}

// kill makes dead letters of group billing of all messages. They are dead in group audit, too.
func (p *partitioned) kill(t *testing.T) (ids []string) {
	t.Helper()
	for _, name := range p.names {
		m, err := p.admin.Get(ctx, topic, admin.ByDelayID(name))
		require.NoError(t, err)
		state, err := p.admin.Kill(ctx, topic, admin.GroupMessage{Group: "billing", ID: m.ID}, admin.KillOptions{Reason: "of " + m.Topic})
		require.NoError(t, err)
		require.Equal(t, admin.Waiting, state)
		ids = append(ids, m.ID)
	}
	return ids
}

func eachPartition(t *testing.T, test func(t *testing.T, p *partitioned)) {
	t.Helper()
	both(t, func(t *testing.T, s *setup) { test(t, newPartitioned(t, s)) })
}

func TestAPartitionedTopicHasTheSumOfItsPartitions(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		stats := p.whole(t)
		require.Equal(t, topic, stats.Topic)
		require.Equal(t, []int{6, 6, 6}, []int{stats.Messages, stats.Waiting, stats.DelayIDs})
		require.Equal(t, 6, stats.Counters.Published)
		require.WithinDuration(t, stats.Now.Add(time.Hour), stats.NextDue, time.Minute)
		require.Len(t, stats.Groups, 2)
		for i, s := range stats.Partitions {
			require.Equal(t, p.plain[i], s.Topic)
			require.Equal(t, 2, s.Waiting)
			require.Len(t, s.Groups, 2)
		}
		p.kill(t)
		stats = p.whole(t)
		require.Equal(t, []int{6, 6}, []int{stats.Groups[0].Dead, stats.Groups[1].Dead})
		require.Equal(t, 6, stats.Groups[1].Counters.Dead.Killed)

		page, next, err := p.admin.Overview(ctx, "", 100)
		require.NoError(t, err)
		require.Empty(t, next)
		require.Len(t, page, parts)
		slices.Reverse(page)
		folded := admin.Fold(append(page, page[0], admin.Stats{Topic: "other"}))
		require.Len(t, folded, 2)
		require.Equal(t, "other", folded[1].Topic)
		folded[0].Now, stats.Now = time.Time{}, time.Time{}
		for i := range stats.Partitions {
			folded[0].Partitions[i].Now, stats.Partitions[i].Now = time.Time{}, time.Time{}
		}
		require.Equal(t, stats, folded[0])

		plain, err := p.admin.Plain(ctx, "missing", topic, p.plain[1])
		require.NoError(t, err)
		require.Equal(t, slices.Concat([]string{"missing"}, p.plain, p.plain[1:2]), plain)
	})
}

func TestAPartitionedTopicIsPausedAsAWhole(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		pause, err := p.admin.Pause(ctx, topic, admin.PauseOptions{By: "ann", Why: "deploy"})
		require.NoError(t, err)
		require.Equal(t, "ann", pause.By)
		stats := p.whole(t)
		require.Equal(t, "deploy", stats.Pause.Why)
		for _, s := range stats.Partitions {
			require.NotNil(t, s.Pause)
		}
		was, err := p.admin.Resume(ctx, p.plain[0], admin.ResumeOptions{}) // a partition alone
		require.NoError(t, err)
		require.True(t, was)
		require.NotNil(t, p.whole(t).Pause)
		require.Nil(t, p.whole(t).Partitions[0].Pause)
		was, err = p.admin.Resume(ctx, topic, admin.ResumeOptions{})
		require.NoError(t, err)
		require.True(t, was)
		require.Nil(t, p.whole(t).Pause)

		_, err = p.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("billing")})
		require.NoError(t, err)
		for _, s := range p.whole(t).Partitions {
			require.NotNil(t, s.Groups[1].Pause)
		}
		_, err = p.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("billing")})
		require.NoError(t, err)
		_, err = p.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("missing")})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `no partition of topic "orders"`)
	})
}

func TestMessagesOfAPartitionedTopicAreFoundAnywhere(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		m, err := p.admin.Get(ctx, topic, admin.ByDelayID(p.names[4]))
		require.NoError(t, err)
		require.Equal(t, p.plain[1], m.Topic)
		m, err = p.admin.Get(ctx, topic, admin.ByID(m.ID))
		require.NoError(t, err)
		require.Equal(t, p.plain[1], m.Topic)
		of, err := p.admin.Get(ctx, p.plain[1], admin.ByID(m.ID))
		require.NoError(t, err)
		require.Empty(t, of.Topic, "the caller knows it")

		require.NoError(t, p.admin.Reschedule(ctx, topic, admin.ByDelayID(p.names[2]), admin.In(9*time.Hour)))
		require.NoError(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(p.names[4])))
		require.NoError(t, p.admin.Reschedule(ctx, topic, admin.ByDelayID(p.names[0]), admin.When{}))
		require.ErrorIs(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(p.names[4])), admin.ErrNotFound)
		require.Equal(t, 5, p.whole(t).Messages)

		var seen []string
		for q := (admin.Query{State: admin.Waiting, Limit: 1}); ; {
			page, err := p.admin.List(ctx, topic, q)
			require.NoError(t, err)
			for _, m := range page.Messages {
				require.NotEmpty(t, m.Topic)
				seen = append(seen, m.DelayID)
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
		require.Subset(t, seen, []string{p.names[3], p.names[1], p.names[5], p.names[2]})
		for _, wrong := range []string{"x", "1:2", "-1", "/", "0/x"} {
			_, err := p.admin.List(ctx, topic, admin.Query{State: admin.Waiting, Cursor: wrong})
			require.ErrorIs(t, err, admin.ErrInvalidArgument, wrong)
		}
		_, err = p.admin.List(ctx, topic, admin.Query{State: admin.Dead, Group: "missing"})
		require.ErrorIs(t, err, admin.ErrNotFound)
		_, err = p.admin.List(ctx, "missing", admin.Query{State: admin.Waiting, Cursor: "x"})
		require.Error(t, err)

		buckets, err := p.admin.Upcoming(ctx, topic, admin.Load{Width: 24 * time.Hour, Buckets: 1, Group: "billing"})
		require.NoError(t, err)
		require.GreaterOrEqual(t, buckets[0].Waiting, 4)
	})
}

func TestDeadLettersOfAPartitionedTopic(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		ids := p.kill(t)
		var progress admin.Progress
		tell := func(now admin.Progress) {
			require.GreaterOrEqual(t, now.Done, progress.Done)
			progress = now
		}
		n, err := p.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "audit", Limit: 3, DryRun: true, Progress: tell})
		require.NoError(t, err)
		require.Equal(t, []int{3, 3}, []int{n, progress.Done})

		reasons, err := p.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "billing"})
		require.NoError(t, err)
		require.Equal(t, 6, reasons.Looked)
		count := 0
		for _, r := range reasons.Reasons {
			count += r.Count
			require.Contains(t, p.plain, r.Sample.Topic)
		}
		require.Equal(t, 6, count)

		require.NoError(t, p.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "billing", ID: ids[5]}))
		require.NoError(t, p.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "billing", ID: ids[4]}))
		require.ErrorIs(t, p.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "billing", ID: ids[4]}), admin.ErrNotFound)
		n, err = p.admin.RequeueAll(ctx, topic, admin.Bulk{Group: "billing", Limit: 3})
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, 1, p.whole(t).Groups[1].Dead)
		n, err = p.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "billing"})
		require.NoError(t, err)
		require.Equal(t, 1, n)

		_, err = p.admin.MoveDead(ctx, p.plain[0], admin.Bulk{Group: "audit", To: topic})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, "has partitions")
		n, err = p.admin.MoveDead(ctx, topic, admin.Bulk{Group: "audit", To: "retired"})
		require.NoError(t, err)
		require.Equal(t, 6, n)
		stats, err := p.admin.Stats(ctx, "retired")
		require.NoError(t, err)
		require.Equal(t, 6, stats.Messages)
	})
}

func TestAPartitionedTopicIsExaminedAndRemoved(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		ready, err := p.admin.Ready(ctx, topic)
		require.NoError(t, err)
		require.Len(t, ready.Topics, parts)
		_, err = p.admin.Pause(ctx, p.plain[2], admin.PauseOptions{})
		require.NoError(t, err)
		d, err := p.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: []string{topic}})
		require.NoError(t, err)
		require.Equal(t, parts, d.Topics)
		require.True(t, slices.ContainsFunc(d.Problems, func(found admin.Problem) bool {
			return found.Kind == admin.PausedNow && found.Topic == p.plain[2]
		}))
		_, err = p.admin.Workers(ctx, topic)
		require.NoError(t, err)

		// A body is lost in one partition.
		m, err := p.admin.Get(ctx, topic, admin.ByDelayID(p.names[1]))
		require.NoError(t, err)
		require.NoError(t, p.Client.HDel(ctx, p.Prefix+":{"+m.Topic+"}:messages", m.ID).Err())
		var last admin.Progress
		report, err := p.admin.Check(ctx, topic, func(now admin.Progress) {
			require.GreaterOrEqual(t, now.Looked, last.Looked)
			last = now
		})
		require.NoError(t, err)
		require.Equal(t, topic, report.Topic)
		require.Equal(t, 5, report.Messages)
		require.NotEmpty(t, report.Violations())
		for _, f := range report.Violations() {
			require.Equal(t, m.Topic, f.Topic)
		}
		repaired, err := p.admin.Repair(ctx, topic)
		require.NoError(t, err)
		require.Len(t, repaired.Mended, len(report.Violations()))
		report, err = p.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())

		removal, err := p.admin.DeleteGroup(ctx, topic, "audit", admin.DeleteOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"audit"}, removal.Groups)
		require.Len(t, p.whole(t).Groups, 1)

		removal, err = p.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, admin.Removal{Groups: []string{"billing"}, Messages: 5, DryRun: true}, removal)
		removal, err = p.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})
		require.NoError(t, err)
		require.Equal(t, 5, removal.Messages)
		_, err = p.admin.Stats(ctx, topic)
		require.ErrorIs(t, err, admin.ErrNotFound)
		names, _, err := p.admin.Topics(ctx, "", 100)
		require.NoError(t, err)
		require.Empty(t, names)
	})
}

// A group that has a subscriber in one partition is no idle group of the topic.
func TestAGroupIsIdleIfItIsIdleInAllPartitions(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		groups, err := p.admin.GroupsWithoutSubscribers(ctx, topic, 0)
		require.NoError(t, err)
		require.Len(t, groups, 2)
		subscriber := p.subscriber(t, "billing")
		_, err = subscriber.Subscribe(t.Context(), p.plain[1])
		require.NoError(t, err)
		eventually(t, func() bool {
			groups, err := p.admin.GroupsWithoutSubscribers(ctx, topic, 0)
			require.NoError(t, err)
			return len(groups) == 1 && groups[0].Group == "audit"
		}, "the subscription is not seen")
		_, err = p.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Second, DryRun: true})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.False(t, p.whole(t).Groups[1].Subscribed, "not in all partitions")
	})
}

// A failure in one partition does not keep the others from their turn.
func TestAPartitionThatFailsStopsNoOther(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		meta := p.Prefix + ":{" + p.plain[1] + "}:meta"
		layout, err := p.Client.HGet(ctx, meta, "layout").Result()
		require.NoError(t, err)
		require.NoError(t, p.Client.HSet(ctx, meta, "layout", "other").Err())
		stats := p.whole(t)
		require.NoError(t, stats.Err)
		require.Equal(t, 4, stats.Waiting)
		require.ErrorIs(t, stats.Partitions[1].Err, admin.ErrLayout)
		_, err = p.admin.Pause(ctx, topic, admin.PauseOptions{})
		require.ErrorIs(t, err, admin.ErrLayout)
		require.ErrorContains(t, err, p.plain[1])
		_, err = p.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Hour, DryRun: true})
		require.ErrorIs(t, err, admin.ErrLayout)
		_, err = p.admin.GroupsWithoutSubscribers(ctx, topic, time.Hour)
		require.ErrorIs(t, err, admin.ErrLayout, "a group may be in use there")
		require.NoError(t, p.Client.HSet(ctx, meta, "layout", layout).Err())
		stats = p.whole(t)
		require.NotNil(t, stats.Partitions[0].Pause)
		require.Nil(t, stats.Partitions[1].Pause)
		require.NotNil(t, stats.Partitions[2].Pause)
	})
}

// While a plain topic has the name, the name means that one alone.
func TestThePlainTopicHasItsName(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		require.NoError(t, p.publisher(t).Publish(topic, delayed("x", time.Hour)))
		stats, err := p.admin.Stats(ctx, topic)
		require.NoError(t, err)
		require.Equal(t, 1, stats.Messages)
		require.Nil(t, stats.Partitions)
		plain, err := p.admin.Plain(ctx, topic)
		require.NoError(t, err)
		require.Equal(t, []string{topic}, plain)
		page, _, err := p.admin.Overview(ctx, "", 100)
		require.NoError(t, err)
		require.ElementsMatch(t, page, admin.Fold(page))
		_, err = p.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})
		require.NoError(t, err)
		require.Equal(t, 6, p.whole(t).Messages, "its partitions are as they were")
		_, err = p.admin.Plain(ctx, strings.Repeat("x", 1000))
		require.NoError(t, err)
	})
}

// passes has so much time pass since the last step of a change.
func (p *partitioned) passes(t *testing.T, d time.Duration) {
	t.Helper()
	set, err := queue.PartitioningOf(ctx, p.queueClient(t), p.Prefix, topic)
	require.NoError(t, err)
	set.Since = set.Since.Add(-d)
	require.NoError(t, queue.SetPartitioning(ctx, p.queueClient(t), p.Prefix, topic, set))
}

func (p *partitioned) queueClient(t *testing.T) *servers.Client {
	t.Helper()
	client, err := servers.NewClient(p.Client)
	require.NoError(t, err)
	return client
}

// set calls SetPartitions, and checks the numbers: those that publishers use, used before, and use
// next.
func (p *partitioned) set(t *testing.T, n int, want ...int) (left string) {
	t.Helper()
	got, err := p.admin.SetPartitions(ctx, topic, n)
	require.NoError(t, err)
	require.Equal(t, want, []int{got.Partitions, got.Before, got.Next}, "%s", got.Left)
	require.Equal(t, want[1]+want[2] == 0, got.Done())
	return strings.Join(got.Left, "\n")
}

func TestATopicGrowsInSafeSteps(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		require.Empty(t, p.set(t, 0, 3, 0, 0), "by the names in the registry")
		left := p.set(t, 5, 3, 0, 5)
		require.Contains(t, left, `Group "audit" has no subscription in 2 of the 2 new partitions`)
		require.Contains(t, left, `Group "billing"`)
		require.Equal(t, left, p.set(t, 5, 3, 0, 5), "it does not go on")
		require.Empty(t, p.set(t, 3, 3, 0, 0), "called off")
		p.set(t, 5, 3, 0, 5)
		for _, group := range []string{"audit", "billing"} {
			subscriber, err := partition.NewSubscriber(partition.SubscriberConfig{Partitions: 5, Subscriber: redisdelay.SubscriberConfig{
				Client: p.Client, KeyPrefix: p.Prefix, ConsumerGroup: group, CloseTimeout: time.Second}}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
			messages, err := subscriber.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			go func() {
				for msg := range messages {
					msg.Ack()
				}
			}()
		}
		eventually(t, func() bool {
			got, err := p.admin.SetPartitions(ctx, topic, 0)
			require.NoError(t, err)
			return len(got.Left) == 0
		}, "the subscriptions are not seen")
		require.Contains(t, p.set(t, 5, 5, 3, 0), "may still use 3 partitions")
		_, err := p.admin.SetPartitions(ctx, topic, 6)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, "from 3 to 5 is under way")
		p.passes(t, 10*time.Second)

		var moved []string
		for _, name := range p.names {
			before, err := partition.TopicOf(topic, 3, name)
			require.NoError(t, err)
			after, err := partition.TopicOf(topic, 5, name)
			require.NoError(t, err)
			if before != after {
				moved = append(moved, name)
				require.Contains(t, p.set(t, 5, 5, 3, 0), before)
			}
		}
		require.NotEmpty(t, moved)
		require.Less(t, len(moved), len(p.names))
		for _, name := range moved {
			require.NoError(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(name)), "it is found under the number before")
		}
		require.Empty(t, p.set(t, 5, 5, 0, 0), "messages whose key stays are of no concern")
	})
}

func TestATopicShrinksInSafeSteps(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		require.Contains(t, p.set(t, 2, 2, 3, 0), "may still use 3 partitions")
		p.passes(t, 10*time.Second)
		require.Equal(t, `Partition "`+p.plain[2]+`" has messages: 2, and 0 dead letters.`, p.set(t, 2, 2, 3, 0))
		m, err := p.admin.Get(ctx, topic, admin.ByDelayID(p.names[2]))
		require.NoError(t, err)
		_, err = p.admin.Kill(ctx, topic, admin.GroupMessage{Group: "billing", ID: m.ID}, admin.KillOptions{})
		require.NoError(t, err)
		require.NoError(t, p.admin.Cancel(ctx, topic, admin.ByDelayID(p.names[5])))
		require.Contains(t, p.set(t, 2, 2, 3, 0), "1, and 2 dead letters")
		_, err = p.admin.DeleteTopic(ctx, p.plain[2], admin.DeleteOptions{})
		require.NoError(t, err)
		require.Empty(t, p.set(t, 2, 2, 0, 0))
		require.Empty(t, p.set(t, 0, 2, 0, 0))

		_, err = p.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})
		require.NoError(t, err)
		_, err = p.admin.SetPartitions(ctx, topic, 0)
		require.ErrorIs(t, err, admin.ErrNotFound, "the number is forgotten")
		require.Empty(t, p.set(t, 7, 7, 0, 0), "of a new topic")
		for _, wrong := range []int{-1, partition.MaxPartitions + 1} {
			_, err := p.admin.SetPartitions(ctx, topic, wrong)
			require.ErrorIs(t, err, admin.ErrInvalidArgument)
		}
		_, err = p.admin.SetPartitions(ctx, "", 1)
		require.ErrorIs(t, err, admin.ErrInvalidTopic)
		require.NoError(t, p.publisher(t).Publish("plain", delayed("x", time.Hour)))
		_, err = p.admin.SetPartitions(ctx, "plain", 1)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.NoError(t, p.Client.HSet(ctx, p.Prefix+":partitions", topic, "many").Err())
		_, err = p.admin.SetPartitions(ctx, topic, 3)
		require.ErrorContains(t, err, "no number of partitions")
	})
}

// An operation whose context ends between two partitions says so.
func TestAnOperationOnPartitionsThatIsInterruptedSaysSo(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		p.kill(t)
		during, cancel := context.WithCancel(ctx)
		n, err := p.admin.PurgeDead(during, topic, admin.Bulk{Group: "billing", Progress: func(admin.Progress) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "after 1 of 3 partitions")
		require.Equal(t, 2, n)
		require.Equal(t, 4, p.whole(t).Groups[1].Dead)
	})
}

// Of a group with SingleActive, one subscription is active in each partition.
func TestAFoldedGroupIsActiveIfItIsInAllPartitions(t *testing.T) {
	t.Parallel()
	names, err := partition.Topics(topic, 2)
	require.NoError(t, err)
	of := func(name, active string) admin.Stats {
		return admin.Stats{Topic: name, Groups: []admin.GroupStats{{Group: "g", SingleActive: true, Active: active, Epoch: 3, Standby: 2}}}
	}
	all := admin.Fold([]admin.Stats{of(names[0], "a"), of(names[1], "b")})
	require.Equal(t, []admin.GroupStats{{Group: "g", SingleActive: true, Active: "a", Standby: 4}}, all[0].Groups)
	all = admin.Fold([]admin.Stats{of(names[0], "a"), of(names[1], "")})
	require.Empty(t, all[0].Groups[0].Active)
}
