package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
)

func (a *app) ignoreCommand() *cobra.Command {
	var group, why string
	c := &cobra.Command{Use: "ignore KIND [TOPIC]", Short: "accept a problem that doctor names, with who and why", Args: cobra.RangeArgs(1, 2),
		Long: `Accepts problems of a kind, of all topics or of one. doctor and the page then show them last, with who accepts them and
why, and they do not change the exit code. A problem that gets worse than it is now shows again, such as a warning that becomes
critical. It holds for everybody, until redisdelay unignore ends it, or the topic is removed.`,
		ValidArgsFunction: a.completeKindAndTopic,
		Example:           "  redisdelay ignore persistence --why 'the cache is rebuilt from the database'\n  redisdelay ignore unread-group orders --group audit --why 'starts in May'",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if err := refuseEmptyTopic(args); err != nil {
				return err
			}
			return a.ignore(ctx, admin.Ignored{Kind: admin.ProblemKind(args[0]), Topic: second(args), Group: group, Why: why, By: a.who()})
		})}
	c.Flags().StringVar(&why, "why", "", "the `reason`; required")
	_ = c.MarkFlagRequired("why")
	c.Flags().StringVar(&group, "group", "", "only problems of this `group` of the topic")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) unignoreCommand() *cobra.Command {
	var group string
	c := &cobra.Command{Use: "unignore KIND [TOPIC]", Short: "show a problem again that was ignored", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeKindAndTopic, Example: "  redisdelay unignore persistence",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if err := refuseEmptyTopic(args); err != nil {
				return err
			}
			return a.unignore(ctx, admin.Ignored{Kind: admin.ProblemKind(args[0]), Topic: second(args), Group: group})
		})}
	c.Flags().StringVar(&group, "group", "", "that was ignored for this `group` of the topic")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) completeKindAndTopic(c *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completeKind(c, args, begin)
	}
	return a.completeTopic(c, args[1:], begin)
}

// refuseEmptyTopic refuses a TOPIC that is given and empty, which would mean all topics.
func refuseEmptyTopic(args []string) error {
	if len(args) > 1 && args[1] == "" {
		return refuse("TOPIC is empty; leave it out for all topics")
	}
	return nil
}

// second returns the second argument of a command, or "".
func second(args []string) string { return append(args, "", "")[1] }

// ignoring returns the arguments of ignore or unignore.
func ignoring(command string, i admin.Ignored) []string {
	args := []string{command}
	if i.Group != "" {
		args = append(args, "--group="+i.Group)
	}
	if strings.HasPrefix(i.Topic, "-") {
		args = append(args, "--")
	}
	args = append(args, i.Kind.Flag())
	if i.Topic != "" {
		args = append(args, i.Topic)
	}
	return args
}

func (a *app) ignore(ctx context.Context, i admin.Ignored) error {
	kind, err := admin.KindOf(string(i.Kind))
	if err != nil {
		return refuse("%w", err)
	}
	if i.Kind = kind; i.Group != "" && i.Topic == "" {
		return refuse("--group is of a topic; name that, too")
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	if _, err := operator.IgnoredProblems(ctx); err != nil {
		return err // who may not see what is ignored does not add to it
	}
	options := admin.DiagnoseOptions{Deep: slices.Contains(operate.Faults(), operate.Fault(i.Kind))} // other kinds need no Deep
	if i.Topic != "" {
		options.Topics = []string{i.Topic}
	}
	diagnosis, err := operator.Diagnose(ctx, options)
	if err != nil {
		return err
	}
	if i.Severity = diagnosis.Worst(i); i.Severity == "" {
		return fmt.Errorf("there is no %s problem%s now; see redisdelay doctor", i.Kind.Flag(), ignoredOf(i))
	}
	did, err := operator.Ignore(ctx, i)
	a.recordIgnored(ctx, operator, "ignore", i, err)
	if err != nil {
		return err
	}
	a.out.say(did, "Problems of kind %q%s are %s.", did.Kind.Flag(), ignoredOf(did), did)
	return nil
}

func (a *app) unignore(ctx context.Context, i admin.Ignored) error {
	kind, err := admin.KindOf(string(i.Kind))
	if err != nil {
		return refuse("%w", err)
	}
	i.Kind = kind
	operator, err := a.admin()
	if err != nil {
		return err
	}
	all, err := operator.IgnoredProblems(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(was admin.Ignored) bool {
		return was.Kind == i.Kind && was.Topic == i.Topic && was.Group == i.Group
	})
	if at < 0 {
		return fmt.Errorf("%s problems%s are not ignored; see redisdelay doctor", i.Kind.Flag(), ignoredOf(i))
	}
	i = all[at]
	err = operator.Unignore(ctx, i)
	a.recordIgnored(ctx, operator, "unignore", i, err)
	if err != nil {
		return err
	}
	a.out.say(i, "Problems of kind %q%s show again. They were %s.", i.Kind.Flag(), ignoredOf(i), i)
	return nil
}

// recordIgnored notes in the audit log what is ignored.
func (a *app) recordIgnored(ctx context.Context, operator *admin.Admin, action string, i admin.Ignored, err error) {
	a.record(ctx, operator, admin.Act{Action: action, Topic: i.Topic, Group: i.Group, Detail: strings.TrimSuffix(string(i.Kind)+": "+i.Why, ": ")}, err)
}

// ignoredOf says what ignored problems are about.
func ignoredOf(i admin.Ignored) (text string) {
	if i.Group != "" {
		text += fmt.Sprintf(" of group %q", i.Group)
	}
	if i.Topic != "" {
		text += fmt.Sprintf(" of topic %q", i.Topic)
	}
	return text
}
