package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// manyWork is a command that runs an operation of package admin on many messages of a group.
type manyWork struct {
	a      *app
	op     admin.Operation
	group  string
	choose choosing
	over   time.Duration
	to     string
	create bool   // to, if there is none
	from   string // file of the exported messages that are chosen; "": none
}

// workCommands returns a command of a family for each operation on messages of one state.
func (a *app) workCommands(family string, state admin.State) (commands []*cobra.Command) {
	for _, op := range admin.Operations() {
		if op.State == state {
			commands = append(commands, a.workCommand(family, &manyWork{a: a, op: op}))
		}
	}
	return commands
}

// workCommand returns the command of an operation, with the flags that the operation heeds.
func (a *app) workCommand(family string, w *manyWork) *cobra.Command {
	op := w.op
	c := &cobra.Command{Use: op.Name + " TOPIC", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic, RunE: a.runs(w.run),
		Short: strings.TrimSuffix(lower(op.Effect), "."),
		Long:  op.Effect + "\nWith --from, only those that are in a file of " + family + " export: what came after the export stays."}
	example := "  redisdelay " + family + " " + op.Name + " orders"
	c.Example = example + " --reason timeout"
	if op.Single {
		c.Use, c.Args = c.Use+" [ID...]", cobra.MinimumNArgs(1)
	}
	if op.Moves {
		c.Use += " --to TOPIC"
		c.Example += " --to orders-retired"
		c.Flags().StringVar(&w.to, "to", "", "the other topic")
		c.Flags().BoolVar(&w.create, "create", false, "make the other topic if there is none")
		_ = c.MarkFlagRequired("to")
		_ = c.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return a.completeTopic(cmd, nil, prefix)
		})
	}
	if op.Spreads {
		c.Example += " --over 10m"
		c.Flags().DurationVar(&w.over, "over", 0, "spread them evenly over this time, so that they do not come all at once")
	}
	if op.Deletes && !op.Moves {
		c.Example += " --dry-run\n  redisdelay " + family + " export orders > orders.ndjson\n" + example + " --from orders.ndjson"
	}
	a.groupFlag(c, &w.group)
	w.choose.declare(c.Flags(), true)
	if op.State == admin.Dead {
		a.completeReason(c, &w.group)
	}
	c.Flags().StringVar(&w.from, "from", "", "only those that are in this `file` of "+family+" export; -: standard input")
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

func (w *manyWork) run(ctx context.Context, args []string) error {
	topic, ids := args[0], args[1:]
	exported, err := w.exported(topic)
	if err != nil {
		return err
	}
	operator, g, err := w.a.groupOf(ctx, topic, w.group)
	if err != nil {
		return err
	}
	if w.to != "" {
		if _, err := w.a.mayCreate(ctx, w.to, w.create); err != nil {
			return err
		}
	}
	did := w.a.actOf(ctx, operator, w.op, topic)
	did.Group, did.To = g.Group, w.to
	if len(ids) > 0 {
		return w.runOnes(ctx, operator, did, ids)
	}
	_, stats, err := w.a.stats(ctx, topic)
	if err != nil {
		return err
	}
	filter, err := w.choose.filter(stats.Now)
	if err != nil {
		return err
	}
	filter.IDs = exported
	bulk := admin.Bulk{Group: g.Group, Filter: filter, Limit: w.choose.limit, To: w.to, Spread: w.over, DryRun: true, Progress: func(p admin.Progress) {
		w.a.out.progress("Counting: %s found among %s", texts.Number(p.Done), texts.Many(p.Looked, w.op.Unit))
	}}
	if did.Count, err = w.op.Run(ctx, operator, topic, bulk); err != nil {
		return err
	}
	if did.Count == 0 {
		did.DryRun = w.a.consent.dryRun
		w.a.done(did)
		return nil
	}
	if ok, err := w.a.agreed(ctx, did); !ok {
		return err
	}
	all := did.Count
	w.a.begins(ctx, operator, did, w.chosen())
	bulk.DryRun, bulk.Limit, bulk.Progress = false, all, func(p admin.Progress) {
		w.a.out.progress("%s: %s of %s", w.op.Name, texts.Number(p.Done), texts.Number(all))
	}
	did.Count, err = w.op.Run(ctx, operator, topic, bulk)
	w.a.record(ctx, operator, did.noted(), err)
	if err != nil {
		w.a.out.note("%s of %s are done, the others are as they were.", texts.Number(did.Count), texts.Many(all, w.op.Unit))
		return err
	}
	w.a.done(did)
	return nil
}

// exported returns the IDs in the file of --from, nil without one. The file also says the group.
func (w *manyWork) exported(topic string) (map[string]bool, error) {
	if !w.a.given("from") {
		return nil, nil
	}
	text, err := w.a.input([]string{w.from})
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for l, err := range admin.ReadLetters(text) {
		if err != nil {
			return nil, err
		}
		w.group = cmp.Or(w.group, l.Group)
		if l.Topic != topic || l.Group != w.group {
			return nil, refuse("--from has dead letter %s of group %q of topic %q; this is about group %q of topic %q", l.ID, l.Group, l.Topic, w.group, topic)
		}
		ids[l.ID] = true
	}
	return ids, nil
}

// chosen says which messages are chosen, and over what time they are spread. "" is all at once.
func (w *manyWork) chosen() string {
	chosen := w.choose.String()
	if w.from != "" {
		chosen = strings.TrimSuffix("from "+w.from+", "+chosen, ", ")
	}
	if w.over > 0 {
		chosen = strings.TrimPrefix(fmt.Sprintf("%s, over %v", chosen, w.over), ", ")
	}
	return chosen
}

// runOnes runs the operation on messages that are named.
func (w *manyWork) runOnes(ctx context.Context, operator *admin.Admin, did act, ids []string) error {
	if w.choose.String() != "" || w.choose.limit != 0 || w.over != 0 || w.from != "" {
		return refuse("with IDs there is nothing else to choose: leave out the other flags")
	}
	did.Count = len(ids)
	if len(ids) == 1 {
		did.ID = ids[0]
	}
	if ok, err := w.a.agreed(ctx, did); !ok {
		return err
	}
	var errs []error
	did.Count = 0
	for _, id := range ids {
		err := ctx.Err()
		if err == nil {
			err = w.op.RunOne(context.WithoutCancel(ctx), operator, did.Topic, admin.GroupMessage{Group: did.Group, ID: id})
			w.a.record(ctx, operator, admin.Act{Action: w.op.Name, Topic: did.Topic, Group: did.Group, MessageID: id}, err)
		}
		if err == nil {
			did.Count++
		}
		errs = append(errs, err)
	}
	if did.Count > 0 {
		w.a.done(did)
	}
	return errors.Join(errs...)
}
