package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{Use: "check [TOPIC...]", Short: "read all data of topics, and report what the library never writes", ValidArgsFunction: a.completeTopic,
		Long:    "Reads all data of the topics, by default of all. It takes some seconds for 100,000 messages, and may run while all is in use.",
		Example: "  redisdelay check orders",
		RunE:    a.runs(a.check)}
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) check(ctx context.Context, named []string) error {
	t := a.out.table(findingColumns...)
	checked, messages, unconfirmed, violations := 0, 0, 0, 0
	warned := map[string]bool{}
	err := a.eachTopic(ctx, named, func(operator *admin.Admin, topic string) error {
		a.out.progress("Checking topic %q; %s done", topic, texts.Many(checked, "topic"))
		report, err := operator.Check(ctx, topic)
		if err != nil {
			return err
		}
		checked++
		messages += report.Messages
		unconfirmed += report.Unconfirmed
		violations += len(report.Violations())
		for _, f := range report.Findings {
			if f.Severity == admin.Warning && warned[f.Kind] {
				continue // about the server, not about the topic
			}
			if f.Severity == admin.Warning {
				warned[f.Kind] = true
				t.row(f, findingCells("the server", f)...)
				continue
			}
			t.row(finding(topic, f, f), findingCells(topic, f)...)
		}
		return nil
	})
	err = t.flush("Nothing is wrong.", err)
	a.out.note("Checked %s with %s.", texts.Many(checked, "topic"), texts.Many(messages, "message"))
	if unconfirmed > 0 {
		a.out.note("%s could not be confirmed, because messages moved too fast. Check again when it is quieter.", texts.Many(unconfirmed, "suspicion"))
	}
	if err == nil && violations > 0 {
		return errSaid
	}
	return err
}

var findingColumns = slices.Clip([]string{"SEVERITY", "TOPIC", "GROUP", "MESSAGE", "KIND", "DETAIL"})

func findingCells(topic string, f admin.Finding, mended ...any) []any {
	return append([]any{alarming.in(string(f.Severity), f.Severity == admin.Violation), cmp.Or(f.Topic, topic), f.Group, f.MessageID, f.Kind, f.Detail}, mended...)
}

// finding returns the object of a finding of a topic, or of a partition that the finding names.
func finding(topic string, f admin.Finding, object any) any {
	if f.Topic != "" {
		return object
	}
	return ofTopic{topic, object}
}

func (a *app) repairCommand() *cobra.Command {
	c := &cobra.Command{Use: "repair TOPIC", Short: "check a topic, and mend what is safe to mend", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay repair orders --dry-run",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.repair(ctx, args[0]) })}
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) repair(ctx context.Context, topic string) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	a.out.progress("Checking topic %q", topic)
	report, err := operator.Check(ctx, topic)
	if err != nil {
		return err
	}
	t := a.out.table(append(findingColumns, "MENDED")...)
	violations := report.Violations()
	if a.consent.dryRun || len(violations) == 0 {
		for _, f := range violations {
			t.row(finding(topic, f, f), findingCells(topic, f, "")...)
		}
		err = t.flush("There is nothing to mend.", nil)
		if len(violations) > 0 {
			err = errSaid
		}
		return err
	}
	w := a.partitioned(ctx, operator, act{Action: "repair", verb: "mend", Topic: topic, Count: len(violations), Unit: "violation"})
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	a.begins(ctx, operator, w, "")
	repaired, err := operator.Repair(ctx, topic)
	w.Count = len(repaired.Mended)
	a.record(ctx, operator, w.noted(), err)
	for _, m := range repaired.Mended {
		t.row(finding(topic, m.Finding, m), findingCells(topic, m.Finding, m.Said())...)
	}
	for _, f := range repaired.Left {
		t.row(finding(topic, f, f), findingCells(topic, f, admin.Mending{Finding: f}.Said())...)
	}
	err = t.flush("There is nothing to mend any more.", err)
	if err == nil && len(repaired.Left) > 0 {
		return errSaid
	}
	return err
}
