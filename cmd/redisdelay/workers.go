package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

func (a *app) workersCommand() *cobra.Command {
	c := &cobra.Command{Use: "workers [TOPIC...]", Short: "who subscribes, and what each has in hand", ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay workers orders", RunE: a.runs(a.workers)}
	a.jsonFlag(c.Flags())
	c.AddCommand(a.releaseCommand())
	return c
}

// turn says whether a worker is the active one of its group, "-" if all of the group get messages.
func turn(w admin.Worker) string {
	switch {
	case w.Active:
		return "yes"
	case w.StandsBy:
		return "stands by"
	default:
		return "-"
	}
}

// hearing says whether the server hears a worker's process, "-" if that is not known.
func hearing(w admin.Worker) string {
	switch {
	case !w.GoneSince.IsZero():
		return "gone since " + stamp(w.GoneSince)
	case w.Heard:
		return "connected"
	case w.Host != "":
		return "not heard"
	default:
		return "-"
	}
}

func (a *app) workers(ctx context.Context, named []string) error {
	t := a.out.table("TOPIC", "GROUP", "HOST", "PID", "PROGRAM", "VERSION", "SINCE", "LAST SEEN", "CONNECTION", "IN HAND", "OLDEST", "ACTIVE")
	err := a.eachTopic(ctx, named, func(operator *admin.Admin, topic string) error {
		workers, err := operator.Workers(ctx, topic)
		for _, w := range workers {
			t.row(w, topic, w.Group, w.Host, fmt.Sprint(w.PID), w.Program, w.Version, w.Since, w.Seen, hearing(w), w.InHand, w.Oldest, turn(w))
		}
		return err
	})
	return t.flush("Nobody subscribes."+a.where(), err)
}
