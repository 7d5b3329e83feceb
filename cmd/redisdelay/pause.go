package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// paused is the object of the commands pause and resume.
type paused struct {
	Topic string       `json:"topic"`
	Group string       `json:"group,omitempty"`
	Pause *admin.Pause `json:"paused,omitempty"`
	Was   *bool        `json:"was_paused,omitempty"`

	Partitions int `json:"partitions,omitempty"` // of the topic; 0: it is a plain one
}

func (p paused) String() string {
	if p.Group == "" {
		return fmt.Sprintf("Topic %q%s", p.Topic, inPartitions(p.Partitions))
	}
	return fmt.Sprintf("Group %q of topic %q%s", p.Group, p.Topic, inPartitions(p.Partitions))
}

// scopeOf returns what --group means. Without it that is the topic; an empty one is refused.
func scopeOf(group string) admin.Scope {
	if group == "" {
		return admin.Scope{}
	}
	return admin.InGroup(group)
}

func (a *app) pauseCommand() *cobra.Command {
	var group string
	var o admin.PauseOptions
	c := &cobra.Command{Use: "pause TOPIC", Short: "stop the deliveries of a topic or a group", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Long:    "Stops the deliveries of a topic or a group, until resume or for a time. If there is a pause already, it says so, and asks.",
		Example: "  redisdelay pause orders --why \"the partner is down\" --for 2h",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			o.By = a.who()
			if err := forward(o); err != nil {
				return err
			}
			operator, err := a.admin()
			if err != nil {
				return err
			}
			if ok, err := a.mayPause(ctx, operator, args[0], group, o); !ok {
				return err
			}
			o.Scope = scopeOf(group)
			pausing, err := operator.Pause(context.WithoutCancel(ctx), args[0], o)
			a.record(ctx, operator, admin.Act{Action: "pause", Topic: args[0], Group: group, Detail: o.Lasts()}, err)
			if err != nil {
				return err
			}
			p := paused{Topic: args[0], Group: group, Pause: &pausing, Partitions: a.partitions(ctx, operator, args[0])}
			a.out.say(p, "%s is %s.", p, pausedText(pausing))
			return nil
		})}
	pauseFlags(c.Flags(), &o)
	a.groupFlag(c, &group)
	c.Flags().Lookup("group").Usage = "only this consumer group"
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

// pauseFlags adds the flags that say why something is paused, and for how long.
func pauseFlags(flags *pflag.FlagSet, o *admin.PauseOptions) {
	flags.StringVar(&o.Why, "why", "", "why, for the next who looks")
	flags.DurationVar(&o.For, "for", 0, "resume by itself after this time; 0: only by resume")
}

// forward refuses a pause that would end before it begins.
func forward(o admin.PauseOptions) error {
	if o.For < 0 {
		return refuse("--for is %v; it must be positive", o.For)
	}
	return nil
}

// mayPause returns whether a topic or group is to be paused. It asks if a pause would be replaced,
// and prints a dry run. Who may not see whether there is a pause may not replace one.
func (a *app) mayPause(ctx context.Context, operator *admin.Admin, topic, group string, o admin.PauseOptions) (bool, error) {
	stats, err := operator.Stats(ctx, topic)
	if err != nil && !a.consent.dryRun && !errors.Is(err, admin.ErrForbidden) {
		return true, nil // Pause says what is wrong, for the audit log too
	}
	if err != nil {
		return false, err
	}
	there := stats.Pause
	if group != "" {
		there = nil
		for _, g := range stats.Groups {
			if g.Group == group {
				there = g.Pause
			}
		}
	}
	p := paused{Topic: topic, Group: group, Partitions: a.partitions(ctx, operator, topic)}
	switch {
	case there != nil:
		return a.agreedTo(ctx, act{Action: "pause", Topic: topic, Group: group, Count: 1, Unit: "pause", Partitions: p.Partitions, DryRun: a.consent.dryRun},
			fmt.Sprintf("replace a pause: %s is %s; the new one is %s", lower(p.String()), pausedText(*there), o.Lasts()))
	case a.consent.dryRun:
		a.out.say(act{Action: "pause", Topic: topic, Group: group, Count: 1, Unit: "pause", Partitions: p.Partitions, DryRun: true}, "This would pause %s, %s.",
			lower(p.String()), o.Lasts())
		return false, nil
	}
	return true, nil
}

// lower returns a text that begins with a lower case letter.
func lower(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// pausedText says since when, by whom, why and until when.
func pausedText(p admin.Pause) string {
	text := "paused since " + stamp(p.Since)
	if p.By != "" {
		text += " by " + p.By
	}
	if !p.Until.IsZero() {
		text += " until " + stamp(p.Until)
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return text
}

func (a *app) resumeCommand() *cobra.Command {
	var group string
	c := &cobra.Command{Use: "resume TOPIC", Short: "end a pause", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay resume orders",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			operator, err := a.admin()
			if err != nil {
				return err
			}
			was, err := operator.Resume(context.WithoutCancel(ctx), args[0], admin.ResumeOptions{Scope: scopeOf(group)})
			if was || err != nil {
				a.record(ctx, operator, admin.Act{Action: "resume", Topic: args[0], Group: group}, err)
			}
			if err != nil {
				return err
			}
			p := paused{Topic: args[0], Group: group, Was: &was, Partitions: a.partitions(ctx, operator, args[0])}
			a.out.say(p, "%s %s.", p, map[bool]string{true: "is resumed", false: "was not paused"}[was])
			return a.stillPaused(ctx, operator, args[0], group)
		})}
	a.groupFlag(c, &group)
	c.Flags().Lookup("group").Usage = "only this consumer group"
	a.jsonFlag(c.Flags())
	return c
}

// stillPaused notes what keeps messages of the topic from being delivered after a resume.
func (a *app) stillPaused(ctx context.Context, operator *admin.Admin, topic, group string) error {
	stats, err := operator.Stats(ctx, topic)
	if err != nil {
		return err
	}
	if stats.Pause != nil {
		a.out.note("The whole topic is still %s. %s ends that.", pausedText(*stats.Pause), commandLine(named([]string{"resume"}, topic)...))
	}
	for _, g := range stats.Groups {
		if g.Pause != nil && (group == "" || g.Group == group) {
			a.out.note("Group %q is still %s. %s ends that.", g.Group, pausedText(*g.Pause), commandLine(named([]string{"resume", "--group=" + g.Group}, topic)...))
		}
	}
	return nil
}
