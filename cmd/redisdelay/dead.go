package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) deadCommand() *cobra.Command {
	var group string
	reasons := &cobra.Command{Use: "reasons TOPIC", Short: "dead letters by reason, with numbers and IDs folded", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead reasons orders",
		RunE: a.runs(func(ctx context.Context, args []string) error { return a.deadReasons(ctx, args[0], group) })}
	a.groupFlag(reasons, &group)
	a.jsonFlag(reasons.Flags())

	var q listing
	list := &cobra.Command{Use: "ls TOPIC", Short: "dead letters, oldest first", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay dead ls orders --reason timeout --since 2h",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.list(ctx, args[0], admin.Dead, q) })}
	a.listFlags(list, &q, true)

	var by naming
	var view payloadView
	show := &cobra.Command{Use: "show TOPIC MESSAGE", Short: "one dead letter, with its payload", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay dead show orders 01M7Y3SQGNBVX5P66MY8JV56FH",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.show(ctx, args[0], args[1], by, view, admin.Dead)
		})}
	by.declare(show.Flags())
	view.declare(show.Flags())
	a.jsonFlag(show.Flags())

	var exportedGroup string
	var exported choosing
	export := &cobra.Command{Use: "export TOPIC", Short: "write dead letters to standard output, a JSON object a line", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead export orders > orders.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.export(ctx, args[0], exportedGroup, exported)
		})}
	a.groupFlag(export, &exportedGroup)
	exported.declare(export.Flags(), true)
	a.completeReason(export, &exportedGroup)
	everyGroup := false
	importing := &cobra.Command{Use: "import TOPIC [FILE]", Short: "publish exported dead letters, due now", Args: cobra.RangeArgs(1, 2),
		Long: `Publishes exported dead letters, due now. FILE is by default -, standard input. Every group of the topic gets them:
if it has groups other than those of the file, the command says so and needs --every-group. Dead letters that are
still there go back to their own group by dead requeue. A dead letter that was imported within the last hour is left
out, so an interrupted import can be repeated.`,
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead import orders orders.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.importLetters(ctx, args[0], args[1:], everyGroup)
		})}
	importing.Flags().BoolVar(&everyGroup, "every-group", false, "also deliver them to groups that did not export them")
	a.consentFlags(importing.Flags())
	a.jsonFlag(importing.Flags())
	commands := append([]*cobra.Command{reasons, list, show, export, importing}, a.workCommands("dead", admin.Dead)...)
	return a.family("dead", "dead letters: why, and what becomes of them", commands...)
}

func (a *app) deadReasons(ctx context.Context, topic, group string) error {
	operator, g, err := a.groupOf(ctx, topic, group)
	if err != nil {
		return err
	}
	reasons, err := operator.DeadReasons(ctx, topic, admin.Bulk{Group: g.Group, Progress: func(p admin.Progress) {
		a.out.progress("Reading: %s of %s", texts.Number(p.Looked), texts.Many(g.Dead, "dead letter"))
	}})
	if err != nil {
		return err
	}
	t := a.out.table("COUNT", "OLDEST", "NEWEST", "SAMPLE", "REASON")
	for _, r := range reasons.Reasons {
		t.row(r, r.Count, r.Oldest, r.Newest, r.Sample.ID, cut(reasons.Short(r), 120))
	}
	if shared := reasons.Shared(); shared != "" {
		a.out.note("%s", shared)
	}
	if reasons.Other > 0 {
		a.out.note("These are the first %s that were found. Dead letters of others: %s.", texts.Many(len(reasons.Reasons), "reason"), texts.Number(reasons.Other))
	}
	return t.flush(fmt.Sprintf("Group %q of topic %q has no dead letters.", g.Group, topic), nil)
}

func (a *app) export(ctx context.Context, topic, group string, choose choosing) error {
	operator, g, err := a.groupOf(ctx, topic, group)
	if err != nil {
		return err
	}
	_, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	filter, err := choose.filter(stats.Now)
	if err != nil {
		return err
	}
	done, unreadable := 0, 0
	query := admin.Query{State: admin.Dead, Group: g.Group, Filter: filter, Limit: 1000}
	err = pages(ctx, operator, topic, query, func(m admin.Message) bool {
		if m.Err != nil {
			unreadable++
			return true
		}
		a.out.object(m.Letter(topic, g.Group))
		if a.out.out.failed != nil {
			return false
		}
		done++
		a.out.progress("Exported %s of %s", texts.Number(done), texts.Many(g.Dead, "dead letter"))
		return choose.limit == 0 || done < choose.limit
	})
	if a.out.out.failed != nil {
		return a.out.out.failed
	}
	a.out.note("Exported %s.", texts.Many(done, "dead letter"))
	if err == nil && unreadable > 0 {
		err = fmt.Errorf("%s could not be read with --marshaler %s, and are not exported", texts.Many(unreadable, "dead letter"), a.marshaler.value)
	}
	return err
}

func (a *app) importLetters(ctx context.Context, topic string, file []string, everyGroup bool) error {
	text, err := a.input(file)
	if err != nil {
		return err
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	letters := admin.ReadLetters(text)
	would, err := operator.ImportDead(ctx, topic, letters, admin.Import{DryRun: true})
	if err != nil {
		return err
	}
	if err := a.otherGroups(topic, would.From, would.Others, everyGroup); err != nil {
		return err
	}
	did := a.partitioned(ctx, operator, act{Action: "import", Topic: topic, Count: would.Letters, Unit: "dead letter"})
	if did.Count == 0 {
		did.DryRun = a.consent.dryRun
		a.done(did)
		return nil
	}
	if ok, err := a.agreed(ctx, did); !ok {
		return err
	}
	a.begins(ctx, operator, did, "")
	done, err := operator.ImportDead(ctx, topic, letters, admin.Import{EveryGroup: everyGroup, Progress: func(p admin.Progress) {
		a.out.progress("Imported %s of %s", texts.Number(p.Done), texts.Many(would.Letters, "dead letter"))
	}})
	did.Count = done.Letters
	a.record(ctx, operator, did.noted(), err)
	if err != nil {
		a.out.note("%s of %s are imported; repeat the command for the others.", texts.Number(did.Count), texts.Many(would.Letters, "dead letter"))
		return err
	}
	if done.LeftOut > 0 {
		a.out.note("%s left out, imported within the last hour.", texts.Many(done.LeftOut, "dead letter"))
	}
	a.done(did)
	return nil
}

// otherGroups says which groups of a topic get dead letters that they did not export. Without
// consent to that it returns a refusal.
func (a *app) otherGroups(topic string, from, others []string, everyGroup bool) error {
	if len(others) == 0 {
		return nil
	}
	said := fmt.Sprintf("the dead letters are of group %s, and an import delivers them to every group of topic %q, also to %s",
		texts.Names(from), topic, texts.Names(others))
	if !everyGroup {
		return refuse("%s; --every-group does that", said)
	}
	a.out.note("%s.", strings.ToUpper(said[:1])+said[1:])
	return nil
}

// input returns the content of a file, or of standard input.
func (a *app) input(file []string) ([]byte, error) {
	if len(file) == 0 || file[0] == "-" {
		if isTerminal(a.sys.stdin) {
			a.out.note("Reading from the terminal, until Ctrl-D.")
		}
		return io.ReadAll(a.sys.stdin)
	}
	text, err := os.ReadFile(file[0])
	if err != nil {
		return nil, refuse("%w: name a file, or - for standard input", err)
	}
	return text, nil
}
