package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// moveWork is a command that moves messages to another topic.
type moveWork struct {
	a      *app
	to     string
	create bool
	choose choosing
	all    bool
	state  string
}

const moveMeant = `Moves messages that wait, retry or are dead to another topic. They keep their IDs, due times, delay IDs, expiry,
deliveries and reasons in each group. Those that are ready or in hand stay for the subscribers of the old topic. The
command says what stays, and why. A message is in one of the two topics at any time, also if the command is killed: run
it again then. Messages that were on their way may be in both until then, 100 at most, or come a minute late.`

// moveTopicCommand returns the command that moves all that a topic has.
func (a *app) moveTopicCommand() *cobra.Command {
	w := &moveWork{a: a, all: true}
	c := &cobra.Command{Use: "move TOPIC --to TOPIC", Short: "move what waits, retries and is dead, such as of a topic that was renamed",
		Long:    moveMeant + "\nThe other topic needs all groups of this one: start its subscribers first, or say --create.",
		Example: "  redisdelay topics move orders --to shop-orders --create --dry-run"}
	return w.declare(c)
}

// moveMessagesCommand returns the command that moves messages that are chosen.
func (a *app) moveMessagesCommand() *cobra.Command {
	w := &moveWork{a: a}
	c := &cobra.Command{Use: "move TOPIC --to TOPIC", Short: "move messages of one kind to another topic",
		Long: moveMeant + "\nThe flags choose them, or --all. Of messages that wait or retry, --since and --until are of the due time; of dead ones, of the death.",
		Example: "  redisdelay msg move orders --to gifts --metadata kind=gift\n" +
			"  redisdelay msg move orders --to orders-parked --state dead --reason timeout --create"}
	w.choose.declare(c.Flags(), true)
	_ = c.Flags().MarkHidden("limit")
	c.Flags().BoolVar(&w.all, "all", false, "all, if no other flag chooses")
	c.Flags().StringVar(&w.state, "state", "waiting,retrying,dead", "only those in these `states`: waiting, retrying, dead, with commas between")
	return w.declare(c)
}

func (w *moveWork) declare(c *cobra.Command) *cobra.Command {
	c.Args, c.ValidArgsFunction, c.RunE = cobra.ExactArgs(1), w.a.completeTopic, w.a.runs(w.run)
	c.Flags().StringVar(&w.to, "to", "", "the other topic")
	c.Flags().BoolVar(&w.create, "create", false, "make the other topic if there is none, and the groups that it lacks, with the settings of those here")
	_ = c.MarkFlagRequired("to")
	_ = c.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return w.a.completeTopic(cmd, nil, prefix)
	})
	w.a.consentFlags(c.Flags())
	w.a.jsonFlag(c.Flags())
	return c
}

// moveDone is what came of a move.
type moveDone struct {
	act
	Created  []string     `json:"created"` // groups
	NewTopic bool         `json:"new_topic"`
	Stay     []admin.Stay `json:"stay"`
	Ready    int          `json:"ready"` // in the old topic, as InHand is
	InHand   int          `json:"in_hand"`
}

func (w *moveWork) run(ctx context.Context, args []string) error {
	topic, states := args[0], []admin.State(nil)
	if w.state != "" {
		for _, name := range strings.Split(w.state, ",") {
			state := admin.State(strings.TrimSpace(name))
			if !slices.Contains([]admin.State{admin.Waiting, admin.Retrying, admin.Dead}, state) {
				return refuse("--state is %q; it must be waiting, retrying, dead, or several with commas between", w.state)
			}
			states = append(states, state)
		}
		if !w.all && w.choose.String() == "" && !w.a.given("state") {
			return refuse("choose messages by --metadata, --reason, --since, --until or --state; or say --all")
		}
		if w.choose.limit != 0 {
			return refuse("--limit is not for this command")
		}
	}
	operator, stats, err := w.a.stats(ctx, topic)
	if err != nil {
		return err
	}
	m := admin.Moving{To: w.to, States: states, Create: w.create, DryRun: true, Progress: func(p admin.Progress) {
		w.a.out.progress("Counting: %s found among %s", texts.Number(p.Done), texts.Many(p.Looked, "message"))
	}}
	if m.Filter, err = w.choose.filter(stats.Now); err != nil {
		return err
	}
	would, err := operator.Move(ctx, topic, m)
	if err != nil {
		if errors.Is(err, admin.ErrNotFound) && !w.create {
			err = fmt.Errorf("%w: say --create", err)
		}
		return err
	}
	did := w.a.partitioned(ctx, operator, act{Action: "move", Topic: topic, To: w.to, Count: would.Messages, Unit: "message"})
	if w.a.consent.dryRun {
		did.DryRun = true
		w.a.out.endProgress()
		w.a.out.say(w.done(did, would), "This would %s%s.", did, makes(would))
		w.explain(would)
		return nil
	}
	if would.Messages == 0 && len(would.Created) == 0 && !would.NewTopic {
		return w.say(did, would)
	}
	if ok, err := w.a.agreedTo(ctx, did, did.String()+makes(would)); !ok {
		return err
	}
	all := did.Count
	w.a.begins(ctx, operator, did, joined(w.state, w.choose.String()))
	m.DryRun, m.Progress = false, func(p admin.Progress) {
		w.a.out.progress("move: %s of %s", texts.Number(p.Done), texts.Number(all))
	}
	moved, err := operator.Move(ctx, topic, m)
	did.Count = moved.Messages
	w.a.record(ctx, operator, did.noted(), err)
	if err != nil {
		w.a.out.note("%s of %s moved, the others are as they were. Run the command again to go on.", texts.Number(did.Count), texts.Many(all, "message"))
		w.explain(moved)
		return err
	}
	return w.say(did, moved)
}

// makes says what a move makes.
func makes(m admin.Moved) string {
	switch {
	case m.NewTopic && len(m.Created) == 0:
		return ", which it makes"
	case len(m.Created) == 0:
		return ""
	}
	made := "there"
	if m.NewTopic {
		made = "in it, which is new"
	}
	return fmt.Sprintf(", and make %s %s: %s", texts.Many(len(m.Created), "group"), made, strings.Join(m.Created, ", "))
}

func (w *moveWork) done(did act, m admin.Moved) moveDone {
	return moveDone{did, m.Created, m.NewTopic, m.Stay, m.Ready, m.InHand}
}

func (w *moveWork) say(did act, m admin.Moved) error {
	w.a.out.endProgress()
	w.a.out.say(w.done(did, m), "Done: %s%s.", did, makes(m))
	w.explain(m)
	return nil
}

// explain says what stays, and why.
func (w *moveWork) explain(m admin.Moved) {
	for _, sentence := range m.Explain() {
		w.a.out.note("%s", sentence)
	}
}
