package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Stats is the content of a topic at one instant. A zero instant means that there is none.
type Stats struct {
	Topic string `json:"topic"`

	// Err is why Overview could not read the topic, and all else is zero then. Else it is nil.
	Err error `json:"error,omitempty"`

	Now time.Time `json:"now"` // the server's clock

	Messages int       `json:"messages"`  // all messages, each counted once, whatever the number of groups
	Waiting  int       `json:"waiting"`   // messages that wait for their due time
	NextDue  time.Time `json:"next_due"`  // the first due time of these; in the past if it is not ready yet
	DelayIDs int       `json:"delay_ids"` // delay IDs that are taken

	Counters Counters `json:"counters"`

	// Scheduled is true if a scheduler is the topic's holder and is less than a second late. Ready
	// also checks that it is connected, and whether it is needed.
	Scheduled bool      `json:"scheduled"`
	NextLook  time.Time `json:"next_look"` // when the scheduler has its next work

	// Fault and FaultAt are the last error of a scheduler of the topic, as in TopicReadiness.
	Fault   string    `json:"fault,omitempty"`
	FaultAt time.Time `json:"fault_at"`

	// Pause is the pause of the topic, nil if there is none.
	Pause *Pause `json:"pause,omitempty"`

	// Stream is true if the topic's messages go into a Redis Stream. See redisdelay.StreamConfig.
	// Its only group is redisdelay.StreamGroup, which has nothing ready or in hand. Its Delivered
	// and Lateness count only messages that had to wait. Entries of the stream are not counted.
	Stream bool `json:"stream,omitempty"`

	// Recurs is true if the topic has recurring schedules, or had some: see Schedules.
	Recurs bool `json:"recurs,omitempty"`

	Groups []GroupStats `json:"groups"` // by name

	// Partitions are the plain topics of a partitioned topic, partition 0 first, and all else is
	// about them together. A count is the sum, and a time the first one. A partition that cannot be
	// read has Err, and is in no sum. Err is set if none can be read. Scheduled and Subscribed are
	// false if one partition lacks its scheduler or subscription, and Active is "" if one lacks its
	// active one. Each partition has its own Epoch. A pause is that which began first, and a limit
	// is the sum of the shares. For a plain topic it is nil.
	Partitions []Stats `json:"partitions,omitempty"`
}

// GroupStats is the content of a consumer group.
type GroupStats struct {
	Group      string    `json:"group"`
	Ready      int       `json:"ready"`
	InHand     int       `json:"in_hand"`
	Retrying   int       `json:"retrying"`
	Dead       int       `json:"dead"`
	OldestDue  time.Time `json:"oldest_due"` // due time of the next ready message
	NextRetry  time.Time `json:"next_retry"`
	OldestDead time.Time `json:"oldest_dead"`

	// Suspects is how many messages have lost a lease since they were last nacked, because their
	// process crashed or stood still. A message that stays a suspect may crash its processes.
	Suspects int `json:"suspects"`

	// SingleActive tells that one subscription of the group gets messages, and others stand by: see
	// redisdelay.SubscriberConfig. Active is that subscription, "" while none is. Epoch is what its
	// deliveries have as Delivery.Epoch. Standby is how many stand by.
	SingleActive bool   `json:"single_active,omitempty"`
	Active       string `json:"active,omitempty"`
	Epoch        int64  `json:"epoch,omitempty"`
	Standby      int    `json:"standby,omitempty"`

	// Subscribed is true if a subscription waits for messages of the group or holds one. LastSeen
	// is when one last asked for messages, settled some, or kept those that it has; or else when
	// the group was created.
	Subscribed bool      `json:"subscribed"`
	LastSeen   time.Time `json:"last_seen"`

	// LastSettled is when a subscription last acked or nacked messages; zero means never.
	// It knows of acks by its next claim: at once if messages are ready, else up to 66 seconds
	// later.
	LastSettled time.Time `json:"last_settled"`

	// Pause is the group's own pause, nil if there is none.
	Pause *Pause `json:"pause,omitempty"`

	// History is for how long the group keeps a line about each message that ended.
	History GroupHistory `json:"history,omitempty"`

	// Limit is how many messages of the group may begin, by its subscribers or an operator.
	// LimitedSince is since when messages have waited because of it; zero means that none do.
	Limit        GroupLimit `json:"limit,omitempty"`
	LimitedSince time.Time  `json:"limited_since"`

	// RemovedAt is when the group expires if nobody uses it until then; zero means never. The group
	// is removed two minutes after that, and meanwhile RemovedAt is the time of the removal. A
	// subscriber without GroupExpiry keeps the group while it is subscribed or may hold messages.
	RemovedAt time.Time `json:"removed_at"`

	// MaxDeliveries, DeadRetention and MaxDead are the last configured values. No limit is a
	// negative value, and for MaxDead 0.
	MaxDeliveries int           `json:"max_deliveries"`
	DeadRetention time.Duration `json:"dead_retention"`
	MaxDead       int           `json:"max_dead"`

	Counters GroupCounters `json:"counters"`

	// Lateness counts deliveries since the group was created by the time from due to delivery.
	// MaxLateness is that time at most, of the deliveries reported since MaxLatenessSince. This is
	// the beginning of the full hour before the last one, by the server's clock. So MaxLateness is
	// about one to two hours.
	//
	// All are approximate: a subscription reports with its next claim, up to a poll interval later.
	// A crash loses what was not reported, and a claim that the client repeats after a lost reply
	// may count twice.
	Lateness         Lateness      `json:"lateness"`
	MaxLateness      time.Duration `json:"max_lateness"`
	MaxLatenessSince time.Time     `json:"max_lateness_since"`
}

// Stats returns the content of a topic, read in one atomic step. A partitioned topic is read in a
// step for each partition: see Stats.Partitions.
func (a *Admin) Stats(ctx context.Context, topic string) (Stats, error) {
	s, err := a.stats(ctx, topic)
	if err == nil {
		return s, nil
	}
	if errors.Is(err, ErrNotFound) {
		parts, failed := a.partStats(ctx, topic)
		if failed != nil && !errors.Is(failed, ErrForbidden) {
			return Stats{}, fmt.Errorf("stats: %w", failed)
		}
		if len(parts) > 0 {
			sum := whole(topic, parts)
			if sum.Err == nil {
				return sum, nil
			}
			err = sum.Err
		}
	}
	return Stats{}, fmt.Errorf("stats: %w", err)
}

// partStats returns the Stats of the partitions of a topic that exist.
func (a *Admin) partStats(ctx context.Context, topic string) (all []Stats, err error) {
	names, err := a.parts(ctx, topic)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	counted, err := a.counted(ctx, names)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if s := readStats(name, counted[i]); !errors.Is(s.Err, ErrNotFound) {
			all = append(all, s)
		}
	}
	return all, nil
}

// ofPlain returns the Stats of a topic that is not partitioned, and of the partitions of one that
// is.
func (s Stats) ofPlain() []Stats {
	if s.Partitions != nil {
		return s.Partitions
	}
	return []Stats{s}
}

// DeleteOptions are the options of DeleteTopic, DeleteGroup and RemoveSchedule. The zero value
// deletes.
type DeleteOptions struct {
	DryRun bool // count what would be deleted, and delete nothing
}

// IdleOptions are the options of DeleteIdleGroups.
type IdleOptions struct {
	Idle   time.Duration // for how long a group has had no subscriber; required, at least a minute
	DryRun bool          // count what would be deleted, and delete nothing
}

// Removal is what was removed, or would be removed in a dry run.
type Removal struct {
	Groups   []string `json:"groups"`
	Messages int      `json:"messages"` // the group's messages, or for a topic all messages
	DryRun   bool     `json:"dry_run"`
}

// GroupsWithoutSubscribers returns the groups that have had no subscriber for at least idle, in any
// partition, and whose ready messages have waited as long. With idle 0 it may include a group whose
// subscriber is just being woken. The group of a Redis Stream is never included.
func (a *Admin) GroupsWithoutSubscribers(ctx context.Context, topic string, idle time.Duration) ([]GroupStats, error) {
	stats, err := a.Stats(ctx, topic)
	if err != nil {
		return nil, err
	}
	if err := unreadable(stats); err != nil {
		return nil, err
	}
	return idleGroups(stats, idle), nil
}

// unreadable returns why a partition cannot be read. A group may be in use there.
func unreadable(stats Stats) error {
	for _, s := range stats.ofPlain() {
		if s.Err != nil {
			return aboutTopic(s.Topic, s.Err)
		}
	}
	return nil
}

func idleGroups(stats Stats, idle time.Duration) []GroupStats {
	used := map[string]bool{}
	for _, s := range stats.ofPlain() {
		for _, g := range s.Groups {
			since := s.Now.Add(-idle)
			used[g.Group] = used[g.Group] || s.Stream || g.Subscribed || g.LastSeen.After(since) || g.OldestDue.After(since)
		}
	}
	var found []GroupStats
	for _, g := range stats.Groups {
		if !used[g.Group] {
			found = append(found, g)
		}
	}
	return found
}

// DeleteIdleGroups removes the groups that GroupsWithoutSubscribers returns, with all their
// messages. The step that removes a group checks again that it has no subscriber, and that none has
// claimed for 90 seconds. After an outage of Redis, or a jump of its clock, wait two minutes, until
// all subscribers have claimed again. Errors wrap ErrInvalidArgument if IdleOptions.Idle is shorter
// than a minute.
func (a *Admin) DeleteIdleGroups(ctx context.Context, topic string, o IdleOptions) (Removal, error) {
	removal := Removal{DryRun: o.DryRun}
	if o.Idle < time.Minute {
		return removal, fmt.Errorf("delete idle groups: %w: Idle is %v, want at least %v", ErrInvalidArgument, o.Idle, time.Minute)
	}
	stats, err := a.Stats(ctx, topic)
	if err != nil {
		return removal, fmt.Errorf("delete idle groups: %w", err)
	}
	if err := unreadable(stats); err != nil {
		return removal, fmt.Errorf("delete idle groups: %w", err)
	}
	groups := idleGroups(stats, o.Idle)
	for _, s := range stats.ofPlain() {
		t, err := a.topic(ctx, s.Topic, rights.Removing)
		if err != nil {
			return removal, fmt.Errorf("delete idle groups: %w", err)
		}
		for _, g := range s.Groups {
			removed := slices.ContainsFunc(groups, func(idle GroupStats) bool { return idle.Group == g.Group })
			if removed && !o.DryRun {
				if removed, err = t.RemoveIdle(ctx, g.Group, o.Idle); err != nil {
					return removal, fmt.Errorf("delete group %q of topic %q: %w", g.Group, s.Topic, err)
				}
			}
			if removed {
				removal.add(Removal{Groups: []string{g.Group}, Messages: g.holds(), DryRun: o.DryRun})
			}
		}
	}
	return removal, nil
}

// add adds what was removed from another partition.
func (r *Removal) add(part Removal) {
	for _, group := range part.Groups {
		if !slices.Contains(r.Groups, group) {
			r.Groups = append(r.Groups, group)
		}
	}
	r.Messages += part.Messages
	r.DryRun = part.DryRun
}

func (g GroupStats) holds() int { return g.Ready + g.InHand + g.Retrying + g.Dead }

// DeleteGroup removes a group of a topic with all its messages, in chunks of about 1,000. Other
// groups lose nothing. If a subscriber uses the group, it is created again, empty. If the call ends
// early, a scheduler completes it. Errors wrap ErrInvalidArgument if group is "", because no group
// is deleted without being named, or ErrTopicMode for the group of a Redis Stream.
func (a *Admin) DeleteGroup(ctx context.Context, topic, group string, o DeleteOptions) (Removal, error) {
	if group == "" {
		return Removal{}, fmt.Errorf("delete group: %w: no group is named; the default one is %q", ErrInvalidArgument, redisdelay.DefaultConsumerGroup)
	}
	return over(ctx, a, topic, func(plain string) (Removal, error) { return a.deleteGroup(ctx, plain, group, o.DryRun) }, (*Removal).add)
}

func (a *Admin) deleteGroup(ctx context.Context, topic, group string, dryRun bool) (Removal, error) {
	stats, err := a.stats(ctx, topic)
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
		t, err := a.topic(ctx, topic, rights.Removing)
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

// DeleteTopic removes a topic, its groups and all its messages. If it has more than a hundred
// groups and the call ends early, the topic remains without groups, and a scheduler removes the
// rest. Of a partitioned topic the number that SetPartitions has set is forgotten, too. A Redis
// Stream of the topic stays. If the topic does not exist but Topics lists it, its name is removed.
// Stop publishers and subscribers first, because they would create the topic again.
func (a *Admin) DeleteTopic(ctx context.Context, topic string, o DeleteOptions) (Removal, error) {
	partitioned := false
	removal, err := over(ctx, a, topic, func(plain string) (Removal, error) {
		partitioned = partitioned || plain != topic
		return a.deleteTopic(ctx, plain, o.DryRun)
	}, (*Removal).add)
	if err == nil && partitioned && !o.DryRun {
		err = queue.SetPartitioning(ctx, a.client, a.config.KeyPrefix, topic, queue.Partitioning{})
	}
	if err == nil && !o.DryRun {
		err = a.forgetIgnored(ctx, topic)
	}
	return removal, err
}

func (a *Admin) deleteTopic(ctx context.Context, topic string, dryRun bool) (Removal, error) {
	stats, err := a.stats(ctx, topic)
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
	t, err := a.topic(ctx, topic, rights.Erasing)
	if err == nil {
		err = t.Erase(ctx)
	}
	if err != nil {
		return Removal{}, fmt.Errorf("delete topic %q: %w", topic, err)
	}
	return removal, nil
}

// lists returns ErrNotFound unless the registry of topics lists the topic.
func (a *Admin) lists(ctx context.Context, topic string) error {
	listed, err := operate.NewTopic(a.client, a.config.KeyPrefix, topic).Listed(ctx)
	if err == nil && !listed {
		err = fmt.Errorf("topic %q: %w", topic, ErrNotFound)
	}
	return err
}
