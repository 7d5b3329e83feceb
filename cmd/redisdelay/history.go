package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// historyFlags choose lines of a history.
type historyFlags struct {
	filter       admin.HistoryFilter
	since, until string
	limit        int
}

func (a *app) historyCommand() *cobra.Command {
	var f historyFlags
	c := &cobra.Command{Use: "history TOPIC", Short: "messages that ended: acked, dropped, cancelled, replaced or deleted", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic,
		Long: `Prints what became of messages, newest first: when they were due and delivered, how often, how they ended, and which process
acked them. A delivery begins when a subscriber takes the message in hand. It has only what a group keeps: its subscribers or "groups history" turn that on. It has no payloads.`,
		Example: "  redisdelay history orders --delay-id \"order 4711\"\n  redisdelay history orders --group billing --since 20h --json",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.history(ctx, args[0], f) })}
	flags := c.Flags()
	flags.StringVar(&f.filter.Group, "group", "", "only of this `group`")
	flags.StringVar(&f.filter.ID, "id", "", "only the message with this `ID`")
	flags.StringVar(&f.filter.UUID, "uuid", "", "only messages with this `UUID`")
	flags.StringVar(&f.filter.DelayID, "delay-id", "", "only messages with this delay `ID`")
	flags.StringVar(&f.since, "since", "", "only what ended from this time on: RFC 3339, or a duration before now, such as 20h")
	flags.StringVar(&f.until, "until", "", "only what ended before this time: RFC 3339, or a duration before now")
	flags.IntVar(&f.limit, "limit", 50, "print at most so many; 0: all")
	_ = c.RegisterFlagCompletionFunc("group", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completeGroup(cmd, args[:min(len(args), 1)], prefix)
	})
	a.jsonFlag(flags)
	return c
}

func (a *app) history(ctx context.Context, topic string, f historyFlags) error {
	if f.limit < 0 {
		return refuse("--limit is %d; it must be 0 or more", f.limit)
	}
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	var errUntil error
	f.filter.From, err = instant(stats.Now, "--since", f.since, -1)
	f.filter.To, errUntil = instant(stats.Now, "--until", f.until, -1)
	if err = errors.Join(err, errUntil); err != nil {
		return err
	}
	kept := keepingGroups(stats)
	if group := f.filter.Group; group != "" {
		at := slices.IndexFunc(stats.Groups, func(g admin.GroupStats) bool { return g.Group == group })
		if at < 0 {
			return fmt.Errorf("group %q of topic %q: %w", group, topic, admin.ErrNotFound)
		}
	}
	t := a.out.table("ENDED", "HOW", "GROUP", "ID", "DELAY ID", "DUE", "DELIVERED", "DELIVERIES", "TOOK", "BY")
	f.filter.Limit = 1000
	if f.limit > 0 {
		f.filter.Limit = min(f.limit+1, 1000)
	}
	looked, shown, more := 0, 0, false
	for !more {
		page, err := operator.History(ctx, topic, f.filter)
		if err != nil {
			return err
		}
		for _, e := range page.Ended {
			if more = f.limit > 0 && shown == f.limit; more {
				break
			}
			shown++
			t.row(e, e.At, e.How, cmp.Or(e.Group, "-"), e.ID, e.DelayID, e.DueAt, e.FirstDelivery, e.Deliveries, tookText(e), byText(e))
		}
		looked += page.Looked
		if f.filter.Cursor = page.Next; f.filter.Cursor == "" {
			break
		}
	}
	none := fmt.Sprintf("Nothing of that is in the history of topic %q.", topic)
	switch {
	case len(kept) == 0:
		none = fmt.Sprintf("No group of topic %q keeps a history; turn it on: %s", topic, commandLine("groups", "history", topic, "GROUP", "--keep", "24h"))
	case looked == 0:
		none = fmt.Sprintf("Nothing has ended in the history of topic %q, which %s.", topic, strings.Join(kept, " and "))
	}
	err = t.flush(none, nil)
	if more {
		a.out.note("There are more; --limit says how many are shown.")
	}
	return err
}

// keepingGroups says which groups of a topic keep a history.
func keepingGroups(s admin.Stats) (kept []string) {
	for _, g := range s.Groups {
		if g.History.History != (admin.History{}) {
			kept = append(kept, fmt.Sprintf("group %q keeps for %s", g.Group, span(g.History.Retention)))
		}
	}
	return kept
}

// tookText says how long the last delivery took, "" if it was not acked.
func tookText(e admin.Ended) string {
	if took := e.Took(); e.How == "acked" && !e.LastDelivery.IsZero() {
		return took.Round(time.Millisecond).String()
	}
	return ""
}

// byText names who ended a message, or the message that replaced it.
func byText(e admin.Ended) string {
	if e.Host == "" {
		return e.ReplacedBy
	}
	return fmt.Sprintf("%s pid %d", e.Host, e.PID)
}

// endedMessage is the object of msg get for a message that ended.
type endedMessage struct {
	ID      string        `json:"id"`
	UUID    string        `json:"uuid,omitempty"`
	DelayID string        `json:"delay_id,omitempty"`
	Ended   []admin.Ended `json:"ended"`
}

// showEnded prints what became of a message that is not there any more. It returns missing if no
// history has it.
func (a *app) showEnded(ctx context.Context, operator *admin.Admin, topic, name string, by naming, missing error) error {
	if !errors.Is(missing, admin.ErrNotFound) && !errors.Is(missing, admin.ErrTooLate) {
		return missing
	}
	filter, ok := map[string]admin.HistoryFilter{"id": {ID: name}, "delay-id": {DelayID: name}, "uuid": {UUID: name}}[by.by]
	if !ok {
		filter.Name = name
	}
	page, err := firstEnded(ctx, operator, topic, filter)
	if err != nil { // the user may not read the history
		a.out.note("What became of the message is not known: %v", err)
		return missing
	}
	if len(page.Ended) == 0 {
		return missing
	}
	last := page.Ended[0]
	m := endedMessage{ID: last.ID, UUID: last.UUID, DelayID: last.DelayID}
	for _, e := range page.Ended { // of a delay ID that had several messages: the last one
		if e.ID == last.ID {
			m.Ended = append(m.Ended, e)
		}
	}
	a.sayEnded(m)
	return nil
}

// firstEnded returns the first page of a history that has a message, or the last one.
func firstEnded(ctx context.Context, operator *admin.Admin, topic string, f admin.HistoryFilter) (page admin.HistoryPage, err error) {
	for {
		page, err = operator.History(ctx, topic, f)
		if f.Cursor = page.Next; err != nil || len(page.Ended) > 0 || page.Next == "" {
			return page, err
		}
	}
}

func (a *app) sayEnded(m endedMessage) {
	if a.out.json {
		a.out.object(m)
		return
	}
	say := func(name, value string) {
		if value != "" {
			a.out.say(nil, "%-12s %s", name, value)
		}
	}
	say("ID", m.ID)
	say("UUID", m.UUID)
	say("delay ID", m.DelayID)
	for _, e := range m.Ended {
		if !e.DueAt.IsZero() {
			say("due", stamp(e.DueAt))
		}
		where := "before any group had it"
		if e.Group != "" {
			where = fmt.Sprintf("group %q", e.Group)
		}
		say("ended", where+": "+endedText(e))
	}
}

// endedText says how a message ended, such as "acked 2026-11-27 14:03:00Z by worker-7 pid 12 after
// 2 deliveries".
func endedText(e admin.Ended) string {
	text := e.How + " " + stamp(e.At)
	if by := byText(e); by != "" {
		text += " by " + by
	}
	switch {
	case e.Deliveries == 1:
		text += " after 1 delivery"
	case e.Deliveries > 1:
		text += fmt.Sprintf(" after %d deliveries", e.Deliveries)
	}
	if took := tookText(e); took != "" {
		text += ", the last one took " + took
	}
	return text
}

// keepFlags are the flags of groups history.
type keepFlags struct {
	keep       string
	most       int
	off, reset bool
	why        string
}

// keptGroup is the object of groups history.
type keptGroup struct {
	Topic   string              `json:"topic"`
	Group   string              `json:"group"`
	History admin.GroupHistory  `json:"history"`
	Before  *admin.GroupHistory `json:"before,omitempty"` // nil if nothing was to be changed
}

func (a *app) keepHistoryCommand() *cobra.Command {
	var f keepFlags
	c := &cobra.Command{Use: "history TOPIC GROUP", Short: "for how long a group keeps what became of messages", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completeGroup,
		Long: `Sets for how long a group keeps a line about each message that ends from now on, and shows it without a flag. It replaces what
subscribers ask for, also after they start again, until --reset. "redisdelay history" prints the lines.`,
		Example: "  redisdelay groups history orders billing\n  redisdelay groups history orders billing --keep 24h --max 100000 --why \"order 4711 is lost\"\n" +
			"  redisdelay groups history orders billing --off\n  redisdelay groups history orders billing --reset",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if args[1] == "" {
				return refuse("GROUP is empty; name a group")
			}
			return a.keepHistory(ctx, args[0], args[1], f)
		})}
	c.Flags().StringVar(&f.keep, "keep", "", "keep each line for this `duration`, such as 24h")
	c.Flags().IntVar(&f.most, "max", 0, "keep at most so many lines; default 10,000; of each partition")
	c.Flags().BoolVar(&f.off, "off", false, "keep none, whatever subscribers ask for")
	c.Flags().BoolVar(&f.reset, "reset", false, "again what subscribers ask for")
	c.Flags().StringVar(&f.why, "why", "", "why, for the audit log")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) keepHistory(ctx context.Context, topic, group string, f keepFlags) error {
	var asked []string
	for _, name := range []string{"keep", "off", "reset"} {
		if a.given(name) {
			asked = append(asked, "--"+name)
		}
	}
	var history admin.History
	switch {
	case a.given("off") && !f.off || a.given("reset") && !f.reset:
		return refuse("--off and --reset take no value; leave them out to keep a history")
	case len(asked) > 1:
		return refuse("%s say different things; use one of them", strings.Join(asked, " and "))
	case a.given("max") && !a.given("keep"):
		return refuse("--max is given, and --keep is not; say for how long lines are kept, such as --keep 24h --max 100000")
	case a.given("max") && f.most < 1:
		return refuse("--max is %d; want a whole number from 1, or leave it out for 10,000", f.most)
	case len(asked) == 0 && a.given("why"):
		return refuse("--why tells a reason, and nothing is to be changed; add --keep, --off or --reset")
	case len(asked) == 0:
		return a.showKept(ctx, topic, group)
	case a.given("keep"):
		d, err := time.ParseDuration(f.keep)
		if err != nil || d <= 0 {
			return refuse("--keep is %q; it must be a duration such as 24h; --off keeps no history", f.keep)
		}
		history = admin.History{Retention: d, Max: f.most}
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	done := admin.Act{Action: "keep-history", Topic: topic, Group: group, Detail: f.why}
	var did admin.HistoryChange
	switch whole := context.WithoutCancel(ctx); {
	case f.reset:
		done.Action = "reset-history"
		did, err = operator.ResetHistory(whole, topic, group)
	default:
		did, err = operator.SetHistory(whole, topic, group, history)
		done.Detail = strings.TrimSuffix(did.After.History.String()+": "+f.why, ": ")
	}
	if err != nil || did.Before != did.After || !f.reset {
		a.record(ctx, operator, done, err)
	}
	if err != nil {
		return err
	}
	was := ""
	if did.Before != did.After {
		was = fmt.Sprintf(" Before, it was: %s.", did.Before)
	}
	a.out.say(keptGroup{topic, group, did.After, &did.Before}, "Group %q of topic %q %s.%s", group, topic, keptText(did.After), was)
	return nil
}

func (a *app) showKept(ctx context.Context, topic, group string) error {
	_, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(stats.Groups, func(g admin.GroupStats) bool { return g.Group == group })
	if at < 0 {
		return fmt.Errorf("group %q of topic %q: %w", group, topic, admin.ErrNotFound)
	}
	kept := stats.Groups[at].History
	a.out.say(keptGroup{topic, group, kept, nil}, "Group %q of topic %q %s.", group, topic, keptText(kept))
	return nil
}

// keptText says what history a group keeps, and who decided on it.
func keptText(h admin.GroupHistory) string {
	text := "keeps no history"
	if h.History != (admin.History{}) {
		text = fmt.Sprintf("keeps what became of %s messages, for %s", texts.Number(h.Max), span(h.Retention))
	}
	if h.Set {
		return text + ", by an operator; subscribers ask for " + h.Asked.String()
	}
	return text
}
