package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

func (a *app) topicsCommand() *cobra.Command {
	c := &cobra.Command{Use: "topics [TOPIC...]", Short: "what each topic holds", ValidArgsFunction: a.completeTopic,
		Long:    "Prints what each topic holds. A partitioned topic has one row. If it is named, its partitions have rows, too.",
		Example: "  redisdelay topics\n  redisdelay topics --json | jq -r 'select(.pause) | .topic'",
		RunE:    a.runs(a.listTopics)}
	a.jsonFlag(c.Flags())
	remove := &cobra.Command{Use: "rm TOPIC", Short: "remove a topic with all its groups and messages", Args: cobra.ExactArgs(1), Long: effectOf("remove-topic"),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay topics rm orders-retired --dry-run",
		RunE: a.runs(func(ctx context.Context, args []string) error { return a.removeTopic(ctx, args[0]) })}
	a.consentFlags(remove.Flags())
	a.jsonFlag(remove.Flags())
	c.AddCommand(a.moveTopicCommand(), remove)
	return c
}

func (a *app) removeTopic(ctx context.Context, topic string) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	would, err := operator.DeleteTopic(ctx, topic, admin.DeleteOptions{DryRun: true})
	if err != nil {
		return err
	}
	w := a.removal(ctx, operator, "remove-topic", topic)
	w.Group, w.Count = strings.Join(would.Groups, ", "), would.Messages
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	did, err := operator.DeleteTopic(ctx, topic, admin.DeleteOptions{})
	if err != nil {
		a.cutShort(ctx, ", or the same command,")
	}
	w.Count = did.Messages
	a.record(ctx, operator, w.noted(), err)
	if err == nil {
		a.done(w)
	}
	return err
}

// cutShort says who finishes a removal that was interrupted. Each step is whole, so nothing is half
// done but the removal itself.
func (a *app) cutShort(ctx context.Context, besides string) {
	if ctx.Err() != nil {
		a.out.note("If the removal had begun, a scheduler%s removes what is left.", besides)
	}
}

func (a *app) listTopics(ctx context.Context, named []string) error {
	t := a.out.table("TOPIC", "GROUPS", "WAITING", "READY", "IN HAND", "RETRYING", "DEAD", "NEXT DUE", "STATE")
	row := func(s admin.Stats) {
		sum := sums(s)
		level, problem := judge(s)
		if s.Err != nil {
			t.row(s, s.Topic, "", "", "", "", "", "", "", level.cell(problem))
			return
		}
		t.row(s, s.Topic+inPartitions(len(s.Partitions)), len(s.Groups), s.Waiting, sum.Ready, sum.InHand, sum.Retrying, alarming.in(sum.Dead, sum.Dead > 0), ago(s.NextDue, s.Now), level.cell(state(problem, limitedNow(s))))
	}
	err := a.overview(ctx, named, func(s admin.Stats) {
		row(s)
		if len(named) > 0 && !a.out.json { // the object of the topic has them already
			for _, p := range s.Partitions {
				row(p)
			}
		}
	})
	return t.flush("There is no topic."+a.where(), err)
}

// sums adds up the groups of a topic.
func sums(s admin.Stats) (sum admin.GroupStats) {
	for _, g := range s.Groups {
		sum.Ready += g.Ready
		sum.InHand += g.InHand
		sum.Retrying += g.Retrying
		sum.Dead += g.Dead
		sum.Suspects += g.Suspects
	}
	return sum
}

func (a *app) groupsCommand() *cobra.Command {
	list := &cobra.Command{Use: "ls [TOPIC...]", Short: "what each group holds", ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay groups ls orders", RunE: a.runs(a.listGroups)}
	a.jsonFlag(list.Flags())

	var idleFor, rmIdle time.Duration
	idle := &cobra.Command{Use: "idle [TOPIC...]", Short: "groups that fill up because nobody subscribes", ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay groups idle --for 1h",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.idleGroups(ctx, args, idleFor) })}
	idle.Flags().DurationVar(&idleFor, "for", 2*time.Minute, "without a subscriber for at least so long")
	a.jsonFlag(idle.Flags())

	remove := &cobra.Command{Use: "rm TOPIC [GROUP]", Short: "remove a group with its messages, or all idle groups", Args: cobra.RangeArgs(1, 2), Long: effectOf("remove-group"),
		ValidArgsFunction: a.completeTopic,
		Example:           "  redisdelay groups rm orders billing-old\n  redisdelay groups rm orders --idle 24h --dry-run",
		RunE:              a.runs(func(ctx context.Context, args []string) error { return a.removeGroups(ctx, args, rmIdle) })}
	remove.Flags().DurationVar(&rmIdle, "idle", 0, "instead of GROUP: all groups without a subscriber for at least so long, 1m or more")
	a.consentFlags(remove.Flags())
	a.jsonFlag(remove.Flags())
	return a.family("groups", "consumer groups", list, idle, a.addGroupCommand(), a.limitGroupCommand(), a.keepHistoryCommand(), remove)
}

func (a *app) addGroupCommand() *cobra.Command {
	var settings admin.GroupSettings
	window := admin.DefaultTakeoverWindow
	c := &cobra.Command{Use: "add TOPIC GROUP", Short: "make a group before its subscribers come", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Long: "Makes a consumer group, so that it gets every message that becomes due from now on. A group that exists stays as it is.\n" +
			"A new group also gets what the topic's first group got, if the window of that lasts.",
		Example: "  redisdelay groups add orders billing",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if window < 0 || args[1] == "" {
				return refuse("GROUP needs a name, and --takeover-window is at least 0")
			}
			if settings.TakeoverWindow = window; window == 0 {
				settings.TakeoverWindow = -1
			}
			return a.addGroup(ctx, args[0], args[1], settings)
		})}
	c.Flags().BoolVar(&settings.SingleActive, "single-active", false, "one subscription at a time gets messages; its subscribers need SingleActive")
	c.Flags().DurationVar(&window, "takeover-window", window, "for how long later groups get what this one got, if it is the first; 0: it opens no window and takes none over")
	c.Flags().BoolVar(&settings.Create, "create", false, "make the topic if there is none")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) addGroup(ctx context.Context, topic, group string, settings admin.GroupSettings) error {
	operator, err := a.admin()
	if err == nil {
		_, err = a.mayCreate(ctx, topic, settings.Create)
	}
	if err != nil {
		return err
	}
	did, err := operator.AddGroup(ctx, topic, group, settings)
	if err != nil || !did.Existed {
		a.record(ctx, operator, admin.Act{Action: "add-group", Topic: topic, Group: group}, err)
	}
	if err != nil {
		return err
	}
	said := map[bool]string{true: "Group %q of topic %q exists.", false: "Added group %q of topic %q."}[did.Existed]
	if did.TakenOver > 0 {
		said += fmt.Sprintf(" It gets %s that came before it.", texts.Many(did.TakenOver, "message"))
	}
	if did.Waited > 0 {
		said += fmt.Sprintf(" It gets %s that waited for a group.", texts.Many(did.Waited, "message"))
	}
	a.out.say(ofTopic{topic, did}, said, group, topic)
	return nil
}

func (a *app) groupTable() *table {
	return a.out.table("TOPIC", "GROUP", "READY", "IN HAND", "RETRYING", "DEAD", "SUSPECTS", "SUBSCRIBED", "ACTIVE", "LAST SEEN", "LIMIT", "PAUSED")
}

func groupCells(t *table, s admin.Stats, g admin.GroupStats) {
	topic, now := s.Topic, s.Now
	paused := pausedCell(g.Pause, now)
	if g.Pause == nil && s.Pause != nil {
		paused = "the topic: " + pausedCell(s.Pause, now)
	}
	t.row(ofTopic{topic, g}, topic, g.Group, g.Ready, g.InHand, g.Retrying, alarming.in(g.Dead, g.Dead > 0), doubtful.in(g.Suspects, g.Suspects > 0),
		doubtful.in(g.Subscribed, !g.Subscribed && g.Group != redisdelay.StreamGroup), activeOf(s, g.Group), ago(g.LastSeen, now), limitCell(g), doubtful.in(paused, paused != "-"))
}

// pausedCell says since when, for how long and why.
func pausedCell(p *admin.Pause, now time.Time) string {
	if p == nil {
		return "-"
	}
	text := ago(p.Since, now)
	if !p.Until.IsZero() {
		text += ", for " + span(p.Until.Sub(p.Since))
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return cut(text, 60)
}

// activeOf says how many subscriptions of a group with SingleActive are active, of how many. It is
// "-" for other groups, where all are.
func activeOf(s admin.Stats, group string) string {
	if s.Partitions == nil {
		s.Partitions = []admin.Stats{s}
	}
	single, active, all := false, 0, 0
	for _, p := range s.Partitions {
		for _, g := range p.Groups {
			if g.Group != group || !g.SingleActive {
				continue
			}
			single, all = true, all+g.Standby
			if g.Active != "" {
				active, all = active+1, all+1
			}
		}
	}
	if !single {
		return "-"
	}
	return fmt.Sprintf("%d of %d", active, all)
}

func (a *app) listGroups(ctx context.Context, named []string) error {
	t := a.groupTable()
	var unreadable []error
	err := a.overview(ctx, named, func(s admin.Stats) {
		switch {
		case errors.Is(s.Err, admin.ErrNotFound):
			a.out.note("Topic %q does not exist.", s.Topic)
		case s.Err != nil:
			unreadable = append(unreadable, aboutTopic(s.Topic, s.Err))
		}
		for _, g := range s.Groups {
			groupCells(t, s, g)
		}
	})
	return t.flush("There is no group."+a.where(), errors.Join(append(unreadable, err)...))
}

func (a *app) idleGroups(ctx context.Context, named []string, idle time.Duration) error {
	t := a.groupTable()
	err := a.eachTopic(ctx, named, func(operator *admin.Admin, topic string) error {
		groups, err := operator.GroupsWithoutSubscribers(ctx, topic, idle)
		if err != nil || len(groups) == 0 {
			return err
		}
		stats, err := operator.Stats(ctx, topic)
		for _, g := range groups {
			groupCells(t, stats, g)
		}
		return err
	})
	return t.flush(fmt.Sprintf("No group is without a subscriber for %s or longer.%s", idle, a.where()), err)
}

func (a *app) removeGroups(ctx context.Context, args []string, idle time.Duration) error {
	if (len(args) == 2) == (idle > 0) {
		return refuse("name a GROUP, or --idle with a duration")
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	topic := args[0]
	remove := func(dryRun bool) (admin.Removal, error) {
		if idle > 0 {
			return operator.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: idle, DryRun: dryRun})
		}
		return operator.DeleteGroup(ctx, topic, args[1], admin.DeleteOptions{DryRun: dryRun})
	}
	would, err := remove(true)
	if err != nil {
		return err
	}
	w := a.removal(ctx, operator, "remove-group", topic)
	w.Group, w.Count = strings.Join(would.Groups, ", "), would.Messages
	if len(would.Groups) == 0 {
		w.verb = "remove"
		a.done(w)
		return nil
	}
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	did, err := remove(false)
	w.Group, w.Count = strings.Join(did.Groups, ", "), did.Messages
	a.record(ctx, operator, w.noted(), err)
	if err != nil {
		a.cutShort(ctx, "")
		return err
	}
	a.done(w)
	return nil
}

func (a *app) upcomingCommand() *cobra.Command {
	var width time.Duration
	var buckets int
	var group, from string
	var most int
	metadata := map[string]string{}
	c := &cobra.Command{Use: "upcoming TOPIC", Short: "how many messages fall due when, as a histogram", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Long:    "Counts how many messages fall due in each interval. With --metadata it reads them, at most --most, and says how far it came.",
		Example: "  redisdelay upcoming orders --width 1h --buckets 24\n  redisdelay upcoming orders --metadata kind=card --from \"tomorrow 9:00\" --width 1h --buckets 1",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if most < 1 {
				return refuse("--most is %d; it must be at least 1", most)
			}
			return a.upcoming(ctx, args[0], from, admin.Load{Width: width, Buckets: buckets, Group: group, Most: most, Filter: admin.Filter{Metadata: metadata}})
		})}
	c.Flags().DurationVar(&width, "width", time.Minute, "length of each interval")
	c.Flags().IntVar(&buckets, "buckets", 20, "number of intervals, at most 1000")
	c.Flags().StringVar(&from, "from", "", "start at this `time`, such as 2h (from now), \"tomorrow 9:00\" or 2026-11-27T09:00:00Z; default now")
	c.Flags().StringToStringVar(&metadata, "metadata", nil, "only those with this `key=value` in their metadata; may be repeated")
	c.Flags().IntVar(&most, "most", admin.DefaultMostUpcoming, "with --metadata: how many messages are read at most")
	a.groupFlag(c, &group)
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) upcoming(ctx context.Context, topic, from string, load admin.Load) error {
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	if load.From, err = instant(stats.Now, "--from", from, when.Future); err != nil {
		return err
	}
	if load.Group == "" && len(stats.Groups) == 1 {
		load.Group = stats.Groups[0].Group
	}
	buckets, err := operator.Upcoming(ctx, topic, load)
	if err != nil {
		return err
	}
	most := 1
	for _, b := range buckets {
		most = max(most, b.Waiting+b.Retrying)
	}
	const widest = 50
	t := a.out.table("FROM", "WAITING", "RETRYING", "")
	for _, b := range buckets {
		bar := strings.Repeat("#", (b.Waiting*widest+most-1)/most) + strings.Repeat("+", (b.Retrying*widest+most-1)/most)
		t.row(ofTopic{topic, b}, b.From, b.Waiting, b.Retrying, styled{bar + " ", faint})
	}
	if err := t.flush("", nil); err != nil || len(buckets) == load.Buckets {
		return err
	}
	until := "the first interval"
	if n := len(buckets); n > 0 {
		until = stamp(buckets[n-1].Until)
	}
	a.out.note("Not all was counted: %s were read, which is --most, and that is up to %s.", texts.Many(load.Most, "message"), until)
	return errSaid
}

// overview calls do with the content of the topics that are named, or else of all, once for a
// partitioned topic. It says first if the server is a replica, where nobody schedules.
func (a *app) overview(ctx context.Context, named []string, do func(admin.Stats)) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	a.replica.Do(func() { a.noteReplica(ctx) })
	for _, topic := range named {
		s, err := operator.Stats(ctx, topic)
		if err != nil {
			return err
		}
		do(s)
	}
	if len(named) > 0 {
		return nil
	}
	var all []admin.Stats // partitions of one topic may be in several pages
	for cursor := ""; ; {
		var page []admin.Stats
		page, cursor, err = operator.Overview(ctx, cursor, 1000)
		slices.SortFunc(page, func(a, b admin.Stats) int { return strings.Compare(a.Topic, b.Topic) })
		if all = append(all, page...); err != nil || cursor == "" {
			break
		}
	}
	for _, s := range admin.Fold(all) {
		do(s)
	}
	return err
}

// noteReplica says if the only server is a replica.
func (a *app) noteReplica(ctx context.Context) {
	client, err := servers.NewClient(a.client)
	if err != nil {
		return
	}
	master, err := client.ReplicaOf(ctx, "")
	if err == nil && master != "" {
		a.out.note("Redis is a replica, where nothing can be published, delivered or scheduled: connect to its master, %s.", master)
	}
}
