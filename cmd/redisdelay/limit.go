package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// limitFlags are the flags of groups limit. Numbers are texts, so that an empty one is told from
// none.
type limitFlags struct {
	rate, burst, atOnce string
	lift, reset         bool
	why                 string
}

// limitedGroup is the object of groups limit.
type limitedGroup struct {
	Topic  string            `json:"topic"`
	Group  string            `json:"group"`
	Limit  admin.GroupLimit  `json:"limit"`
	Before *admin.GroupLimit `json:"before,omitempty"` // nil if nothing was to be changed

	LimitedSince time.Time `json:"limited_since"` // since when messages wait because of it
	Partitions   int       `json:"partitions,omitempty"`
}

func (a *app) limitGroupCommand() *cobra.Command {
	var f limitFlags
	c := &cobra.Command{Use: "limit TOPIC GROUP", Short: "how many messages of a group may begin, a second and at once", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completeGroup,
		Long: `Sets the limit of a group over all its processes, and shows it without a flag. It replaces what subscribers ask for, at once
and also after they start again, until --reset. What is not named is not limited: --at-once alone leaves the rate free.
A partitioned topic shares the limit among its partitions.`,
		Example: "  redisdelay groups limit orders billing\n  redisdelay groups limit orders billing --rate 50/s --burst 10 --at-once 5 --why \"the partner asks for it\"\n" +
			"  redisdelay groups limit orders billing --lift\n  redisdelay groups limit orders billing --reset",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if args[1] == "" {
				return refuse("GROUP is empty; name a group")
			}
			change, limit, err := a.limitAsked(f)
			switch {
			case err != nil:
				return err
			case !change:
				return a.showLimit(ctx, args[0], args[1])
			}
			return a.setLimit(ctx, args[0], args[1], limit, f)
		})}
	c.Flags().StringVar(&f.rate, "rate", "", "messages in a time, such as 50/s, 10/m, 1/h, 1/d or 100/5s")
	c.Flags().StringVar(&f.burst, "burst", "", "messages that may begin at once after a pause; default what --rate brings in 100ms, at least 1")
	c.Flags().StringVar(&f.atOnce, "at-once", "", "messages that may be in hand at the same time")
	c.Flags().BoolVar(&f.lift, "lift", false, "no limit, whatever subscribers ask for")
	c.Flags().BoolVar(&f.reset, "reset", false, "again what subscribers ask for")
	c.Flags().StringVar(&f.why, "why", "", "why, for the audit log")
	a.jsonFlag(c.Flags())
	return c
}

// limitAsked returns the limit that the flags ask for, and whether they ask for a change. With
// --lift and --reset the limit is zero.
func (a *app) limitAsked(f limitFlags) (change bool, limit admin.Limit, err error) {
	var asked []string
	for _, name := range []string{"rate", "at-once", "lift", "reset"} {
		if a.given(name) {
			asked = append(asked, "--"+name)
		}
	}
	either := a.given("lift") || a.given("reset")
	switch {
	case a.given("lift") && !f.lift || a.given("reset") && !f.reset:
		return false, limit, refuse("--lift and --reset take no value; leave them out to set a limit")
	case either && len(asked) > 1:
		return false, limit, refuse("%s say different things; use one of --lift, --reset, and --rate with --at-once", strings.Join(asked, " and "))
	case a.given("burst") && !a.given("rate"):
		return false, limit, refuse("--burst is given, and --rate is not; a burst belongs to a rate, such as --rate 50/s --burst 10")
	case len(asked) == 0 && a.given("why"):
		return false, limit, refuse("--why tells a reason, and nothing is to be changed; add --rate, --at-once, --lift or --reset")
	case len(asked) == 0 || either:
		return either, limit, nil
	}
	if a.given("rate") {
		perSecond, err := texts.ParseRate(f.rate)
		if err != nil {
			return false, limit, refuse("--rate %w; --lift is for no limit", err)
		}
		limit.Rate = redisdelay.Limit(perSecond)
	}
	if limit.Burst, err = a.countOf("burst", f.burst, "leave it out for what the rate brings in 100ms"); err != nil {
		return false, limit, err
	}
	limit.AtOnce, err = a.countOf("at-once", f.atOnce, "leave it out, or use --lift, for no limit")
	return true, limit, err
}

// countOf reads the number of a flag, 0 if it is not given.
func (a *app) countOf(flag, text, otherwise string) (int, error) {
	if !a.given(flag) {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, refuse("--%s is %q; want a whole number from 1, or %s", flag, text, otherwise)
	}
	return n, nil
}

// setLimit sets, lifts or resets the limit of a group.
func (a *app) setLimit(ctx context.Context, topic, group string, limit admin.Limit, f limitFlags) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	done := admin.Act{Action: "limit", Topic: topic, Group: group, Detail: limitDetail(limit, f)}
	var did admin.LimitChange
	switch whole := context.WithoutCancel(ctx); {
	case f.reset:
		done.Action = "reset-limit"
		did, err = operator.ResetLimit(whole, topic, group)
	case f.lift:
		done.Action = "lift-limit"
		did, err = operator.SetLimit(whole, topic, group, admin.Limit{})
	default:
		did, err = operator.SetLimit(whole, topic, group, limit)
		if err == nil {
			done.Detail = limitDetail(did.After.Limit, f) // with the burst
		}
	}
	if err != nil || did.Before != did.After || !f.reset {
		a.record(ctx, operator, done, err)
	}
	if err != nil {
		return err
	}
	l := limitedGroup{Topic: topic, Group: group, Limit: did.After, Before: &did.Before, Partitions: a.partitions(ctx, operator, topic)}
	was := ""
	if did.Before != did.After {
		was = fmt.Sprintf(" Before, it was: %s.", did.Before)
	}
	a.out.say(l, "%s %s.%s", l, limitText(did.After), was)
	return nil
}

// limitDetail says for the audit log what limit is set, and why.
func limitDetail(limit admin.Limit, f limitFlags) string {
	detail := limit.String()
	if f.lift || f.reset {
		detail = ""
	}
	if detail != "" && f.why != "" {
		detail += ": "
	}
	return detail + f.why
}

// showLimit prints the limit of a group.
func (a *app) showLimit(ctx context.Context, topic, group string) error {
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(stats.Groups, func(g admin.GroupStats) bool { return g.Group == group })
	if at < 0 {
		return fmt.Errorf("group %q of topic %q: %w", group, topic, admin.ErrNotFound)
	}
	g := stats.Groups[at]
	l := limitedGroup{Topic: topic, Group: group, Limit: g.Limit, LimitedSince: g.LimitedSince, Partitions: a.partitions(ctx, operator, topic)}
	waits := ""
	if !g.LimitedSince.IsZero() {
		waits = fmt.Sprintf(" Messages wait because of it, %s of them, since %s.", texts.Number(g.Ready), ago(g.LimitedSince, stats.Now))
	}
	a.out.say(l, "%s %s.%s", l, limitText(g.Limit), waits)
	if g.Limit.Set {
		a.out.note("By whom and why: %s", commandLine("audit", "--topic="+topic))
	}
	return nil
}

func (l limitedGroup) String() string {
	return fmt.Sprintf("Group %q of topic %q%s", l.Group, l.Topic, inPartitions(l.Partitions))
}

// limitText says what limit a group has, and who decided on it.
func limitText(l admin.GroupLimit) string {
	asked := "subscribers ask for " + l.Asked.String()
	switch {
	case l.Limit == admin.Limit{} && !l.Set:
		return "has no limit"
	case l.Limit == admin.Limit{}:
		return "has no limit, because an operator has lifted it; " + asked
	case l.Set:
		return "is limited to " + l.Limit.String() + ", by an operator; " + asked
	}
	return "is limited to " + l.Limit.String() + ", as its subscribers ask for"
}

// limitCell says in few words what limit a group has, and whether messages wait because of it.
func limitCell(g admin.GroupStats) any {
	text := "-"
	switch {
	case g.Limit.Limit != admin.Limit{}:
		text = g.Limit.Limit.String()
	case g.Limit.Set:
		text = "lifted"
	}
	if g.LimitedSince.IsZero() {
		return text
	}
	return styled{"limited: " + text, doubtful}
}

// limitedNow names the groups of a topic whose messages wait because of a limit, "" for none.
func limitedNow(s admin.Stats) string {
	var waiting []string
	for _, g := range s.Groups {
		if !g.LimitedSince.IsZero() {
			waiting = append(waiting, fmt.Sprintf("%s limited to %s", g.Group, g.Limit.Limit))
		}
	}
	return strings.Join(waiting, ", ")
}

// state says what is wrong with a topic, and what waits because of a limit, which is nothing wrong.
func state(problem, limited string) string {
	if problem != "" && limited != "" {
		return problem + "; " + limited
	}
	return problem + limited
}
