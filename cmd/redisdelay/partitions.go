package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) partitionsCommand() *cobra.Command {
	show := &cobra.Command{Use: "show TOPIC", Short: "the number of partitions, and how far a change of it is", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay partitions show orders",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			operator, err := a.admin()
			if err != nil {
				return err
			}
			p, err := operator.SetPartitions(ctx, args[0], 0)
			if err == nil {
				a.sayPartitions(p)
			}
			return err
		})}
	a.jsonFlag(show.Flags())

	wait := false
	set := &cobra.Command{Use: "set TOPIC N", Short: "grow or shrink a partitioned topic, one safe step a call", Args: cobra.ExactArgs(2),
		Long: `Grows or shrinks a partitioned topic while it is in use. Each call does the next step if it is safe, and says
what is left to do. Repeat it until the change is done, or let --wait do that. Nothing is lost or early meanwhile.`,
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay partitions set orders 24 --wait",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 {
				return refuse("N is %q; it must be a number of partitions", args[1])
			}
			return a.setPartitions(ctx, args[0], n, wait)
		})}
	set.Flags().BoolVar(&wait, "wait", false, "go on until the change is done, or until Ctrl-C")
	a.jsonFlag(set.Flags())
	return a.family("partitions", "how many partitions a topic has", show, set)
}

// waits is how long a change waits until its next step.
const waits = 5 * time.Second

func (a *app) setPartitions(ctx context.Context, topic string, n int, wait bool) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	last := ""
	for {
		p, err := operator.SetPartitions(ctx, topic, n)
		if now := fmt.Sprint(p.Partitions, p.Before, p.Next); now != last || err != nil { // a step, or none at first
			a.record(ctx, operator, admin.Act{Action: "set-partitions", Topic: topic, Detail: stepText(p)}, err)
			last = now
			if err == nil {
				a.sayPartitions(p)
			}
		}
		if err != nil || p.Done() || !wait {
			return err
		}
		if len(p.Left) > 0 {
			a.out.progress("%s", p.Left[0])
		}
		if err := sleep(ctx, waits); err != nil {
			return fmt.Errorf("the change goes on with the same command: %w", err)
		}
	}
}

// stepText says in a few words how far a change is.
func stepText(p admin.Partitioning) string {
	switch {
	case p.Next != 0:
		return fmt.Sprintf("%d, subscribers prepare for %d", p.Partitions, p.Next)
	case p.Before != 0:
		return fmt.Sprintf("%d, and messages of the %d from before may be left", p.Partitions, p.Before)
	}
	return fmt.Sprint(p.Partitions)
}

func (a *app) sayPartitions(p admin.Partitioning) {
	a.out.endProgress()
	a.out.say(p, "Topic %q has %s.", p.Topic, texts.Many(p.Partitions, "partition"))
	if a.out.json {
		return
	}
	switch {
	case p.Next != 0:
		a.out.say(nil, "It grows to %d. Its subscribers are to have as many before its publishers use them.", p.Next)
	case p.Before != 0:
		a.out.say(nil, "It had %d. Messages from then may be left.", p.Before)
	}
	for _, left := range p.Left {
		a.out.say(nil, "  %s", left)
	}
	for _, plain := range p.Unused {
		a.out.say(nil, "Partition %q is not used any more. When nobody reads it: %s", plain, commandLine(named([]string{"topics", "rm"}, plain)...))
	}
	if !p.Done() && len(p.Left) == 0 {
		a.out.say(nil, "The next step can be done:")
		a.out.say(nil, "  %s", commandLine(named([]string{"partitions", "set"}, p.Topic, strconv.Itoa(max(p.Next, p.Partitions)))...))
	}
}
