package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Stats is what a topic holds at one time. Zero instants mean that there is nothing of the kind.
type Stats struct {
	Topic string
	Now   time.Time // by the server's clock

	Messages int       // all, each once however many groups have it
	Pending  int       // that wait for their due time
	NextDue  time.Time // of them; past if it is due and not made ready yet
	DelayIDs int       // names that are taken now

	// Scheduled tells that some process holds the scheduling lease, and is not a second late to use it. Whether
	// that process is still there, and needed, Ready finds out.
	Scheduled bool
	NextLook  time.Time // when it has something to do

	PausedSince time.Time

	// Stream tells that the topic's messages go into a Redis Stream: see redisdelay.StreamConfig. Its only group is
	// redisdelay.StreamGroup. It has nothing ready or in hand, and Delivered and lateness are those of the messages
	// that waited; what is in the stream, the stream knows.
	Stream bool

	Groups []GroupStats // by name
}

// GroupStats is what a group of it holds.
type GroupStats struct {
	Group                         string
	Ready, InHand, Retrying, Dead int
	OldestDue                     time.Time // due time of the message that is next of Ready
	NextRetry, OldestDead         time.Time

	// Subscribed tells that some process takes the group's messages: it waits for them, or holds one.
	// LastSeen is when one last took messages or told of them, or else when the group was made.
	Subscribed bool
	LastSeen   time.Time

	PausedSince time.Time

	// RemovedAt is when the group ends if nobody uses it until then; zero: never. It is removed two minutes later, and
	// RemovedAt is that time meanwhile. Where some subscribe without GroupExpiry it stays while they do, and for
	// as long as they may hold something.
	RemovedAt time.Time

	// MaxDeliveries and DeadRetention are as last configured; negative: no limit.
	MaxDeliveries int
	DeadRetention time.Duration

	// Delivered counts the messages that consumers got, each time anew, and Dropped those that were too late
	// and were dropped. MeanLateness and MaxLateness are from due until the consumer got them. These are
	// statistics, not accounts: a subscription tells of them with its next claim, so up to a poll interval
	// later; what it has not told when its process dies is never counted; and a claim that the client sends
	// again after a lost reply may count twice.
	Delivered, Dropped        int
	MeanLateness, MaxLateness time.Duration
}

// Stats returns what a topic holds, in one step. Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Stats(ctx context.Context, topic string) (Stats, error) {
	s, err := a.stats(ctx, topic)
	if err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	stats := Stats{Topic: topic, Now: s.Now, Messages: s.Messages, Pending: s.Pending, NextDue: s.NextDue,
		DelayIDs: s.DelayIDs, Scheduled: s.Holder != "", NextLook: s.Next, PausedSince: s.Paused,
		Stream: s.Stream}
	for _, g := range s.Groups {
		stats.Groups = append(stats.Groups, groupStats(g))
	}
	return stats, nil
}

func (a *Admin) stats(ctx context.Context, topic string) (operate.Stats, error) {
	t, err := a.topic(ctx, topic, queue.Counting)
	if err != nil {
		return operate.Stats{}, err
	}
	return t.Stats(ctx)
}

func groupStats(g operate.GroupStats) GroupStats {
	stats := GroupStats{Group: g.Name, Ready: g.Ready, InHand: g.Unack, Retrying: g.Retry, Dead: g.Dead,
		OldestDue: g.OldestDue, NextRetry: g.NextRetry, OldestDead: g.OldestDead,
		Subscribed: g.Subscribed(), LastSeen: g.Seen, PausedSince: g.Paused, RemovedAt: g.Ends,
		MaxDeliveries: g.MaxDeliveries, DeadRetention: g.Retention,
		Delivered: g.Delivered, Dropped: g.Dropped, MaxLateness: g.Latest}
	if g.Delivered > 0 {
		mean := float64(g.LatenessMillis) / float64(g.Delivered) * float64(time.Millisecond)
		stats.MeanLateness = time.Duration(min(mean, 1<<62))
	}
	return stats
}

// Removal is what was removed, or would be.
type Removal struct {
	Groups   []string
	Messages int // of one group: what it had of them; of a topic: all
	DryRun   bool
}

// GroupsWithoutSubscribers returns the groups of a topic whose messages nobody takes: nobody has taken any for so
// long, and what is ready has been that for as long. 0: those that nobody takes now; one of which a subscriber is
// just being woken may be among them. That of a Redis Stream is none of them. Errors wrap ErrNotFound, or come from
// ctx or Redis.
func (a *Admin) GroupsWithoutSubscribers(ctx context.Context, topic string, idle time.Duration) ([]GroupStats, error) {
	stats, err := a.Stats(ctx, topic)
	if err != nil {
		return nil, err
	}
	var found []GroupStats
	for _, g := range stats.Groups {
		if since := stats.Now.Add(-idle); !stats.Stream && !g.Subscribed && !g.LastSeen.After(since) && !g.OldestDue.After(since) {
			found = append(found, g)
		}
	}
	return found, nil
}

// DeleteIdleGroups removes the groups that GroupsWithoutSubscribers returns, with all that they hold. That a
// group has no subscriber, and that none has claimed for a minute and a half, is looked at again in the step that removes it.
// idle is at least a minute, for a subscriber that is being woken, or has just settled what it had, is not to be seen for a
// moment. After an outage of Redis, or a leap of its clock, wait for two minutes, until all subscribers have been heard of.
// SubscriberConfig.GroupExpiry does the same without a call.
//
// Errors wrap ErrNotFound or ErrInvalidArgument, or come from ctx or Redis.
func (a *Admin) DeleteIdleGroups(ctx context.Context, topic string, idle time.Duration, dryRun bool) (Removal, error) {
	removal := Removal{DryRun: dryRun}
	if idle < time.Minute {
		return removal, fmt.Errorf("delete idle groups: %w: idle is %v: want at least %v", ErrInvalidArgument, idle, time.Minute)
	}
	groups, err := a.GroupsWithoutSubscribers(ctx, topic, idle)
	if err != nil {
		return removal, fmt.Errorf("delete idle groups: %w", err)
	}
	t, err := a.topic(ctx, topic, queue.Removing)
	if err != nil {
		return removal, fmt.Errorf("delete idle groups: %w", err)
	}
	for _, g := range groups {
		removed := true
		if !dryRun {
			if removed, err = t.RemoveIdle(ctx, g.Group, idle); err != nil {
				return removal, fmt.Errorf("delete group %q of topic %q: %w", g.Group, topic, err)
			}
		}
		if removed {
			removal.Groups = append(removal.Groups, g.Group)
			removal.Messages += g.holds()
		}
	}
	return removal, nil
}

func (g GroupStats) holds() int { return g.Ready + g.InHand + g.Retrying + g.Dead }

// DeleteGroup removes a group of a topic, with all that it holds, in chunks of about 1,000 messages. Other
// groups lose nothing. A group that is subscribed to comes back empty. If the call ends early, a scheduler
// goes on with it. That of a Redis Stream cannot be removed, but with the topic.
//
// Errors wrap ErrNotFound or ErrTopicMode, or come from ctx or Redis.
func (a *Admin) DeleteGroup(ctx context.Context, topic, group string, dryRun bool) (Removal, error) {
	group = groupName(group)
	stats, err := a.Stats(ctx, topic)
	if err != nil {
		return Removal{}, fmt.Errorf("delete group %q: %w", group, err)
	}
	for _, g := range stats.Groups {
		if g.Group != group {
			continue
		}
		removal := Removal{Groups: []string{group}, Messages: g.holds(), DryRun: dryRun}
		if dryRun && !stats.Stream {
			return removal, nil
		}
		t, err := a.topic(ctx, topic, queue.Removing)
		if err == nil {
			err = t.Remove(ctx, group)
		}
		if err != nil {
			return Removal{}, fmt.Errorf("delete group %q of topic %q: %w", group, topic, err)
		}
		return removal, nil
	}
	return Removal{}, fmt.Errorf("delete group %q of topic %q: %w", group, topic, ErrNotFound)
}

// DeleteTopic removes a topic and all that it holds: in one step, or, if it has more than a hundred groups, a
// hundred of them at a time. If the call ends between those, the topic is there without groups, and a scheduler,
// Check, Repair or another DeleteTopic removes what they had. The server frees the memory beside its work. A Redis
// Stream that its messages went into stays. Of a topic that is gone, and is among Topics still, it removes the name. End
// publishers and subscribers first: those that go on make it anew.
//
// Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) DeleteTopic(ctx context.Context, topic string, dryRun bool) (Removal, error) {
	stats, err := a.Stats(ctx, topic)
	if errors.Is(err, ErrNotFound) {
		err = a.lists(ctx, topic)
	}
	if err != nil {
		return Removal{}, fmt.Errorf("delete topic: %w", err)
	}
	removal := Removal{Messages: stats.Messages, DryRun: dryRun}
	for _, g := range stats.Groups {
		removal.Groups = append(removal.Groups, g.Group)
	}
	if dryRun {
		return removal, nil
	}
	t, err := a.topic(ctx, topic, queue.Erasing)
	if err == nil {
		err = t.Erase(ctx)
	}
	if err != nil {
		return Removal{}, fmt.Errorf("delete topic %q: %w", topic, err)
	}
	return removal, nil
}

// lists returns ErrNotFound for a topic that is not there, and not among Topics either.
func (a *Admin) lists(ctx context.Context, topic string) error {
	listed, err := operate.NewTopic(a.client, a.config.KeyPrefix, topic).Listed(ctx)
	if err == nil && !listed {
		err = fmt.Errorf("topic %q: %w", topic, ErrNotFound)
	}
	return err
}
