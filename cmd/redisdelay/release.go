package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

func (a *app) releaseCommand() *cobra.Command {
	var group string
	c := &cobra.Command{Use: "release TOPIC WORKER", Short: "end the leases of a worker that hangs", Args: cobra.ExactArgs(2),
		Long: `Ends all leases of a worker, as if they had run out. Its messages are ready at once, in front, and other workers get them.
WORKER is HOST:PID, as in the columns of "redisdelay workers", or HOST if it has one process there, or the subscription of its JSON.
Each lease counts as expired: a message that ends its workers is found, and a delivery is counted as after a crash.
If the process goes on, what it acks changes nothing, and it may get messages again. So stop it if it hangs.`,
		Example: "  redisdelay workers release orders web-1:4711 --dry-run",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.release(ctx, args[0], args[1], group) })}
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return a.completeTopic(cmd, args, prefix)
		}
		return a.completed(cmd, prefix, func(ctx context.Context) ([]string, error) {
			operator, err := a.admin()
			if err != nil {
				return nil, err
			}
			workers, err := operator.Workers(ctx, args[0])
			return namesOf(workers), err
		})
	}
	a.groupFlag(c, &group)
	c.Flags().Lookup("group").Usage = "only what it has of this consumer `group`; default of all"
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

// namesOf returns the names of the processes of workers, each once.
func namesOf(workers []admin.Worker) (names []string) {
	for _, w := range workers {
		if !slices.Contains(names, w.Name()) {
			names = append(names, w.Name())
		}
	}
	return names
}

func (a *app) release(ctx context.Context, topic, name, group string) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	all, err := operator.Workers(ctx, topic)
	if err != nil {
		return err
	}
	workers := slices.DeleteFunc(slices.Clone(all), func(w admin.Worker) bool { return !w.Named(name) || group != "" && w.Group != group })
	switch names := namesOf(workers); {
	case len(all) == 0:
		return fmt.Errorf("nobody subscribes to topic %q, or has a message in hand: %w", topic, admin.ErrNotFound)
	case len(names) == 0:
		return fmt.Errorf("worker %q of topic %q: %w; its workers are %s", name, topic, admin.ErrNotFound, strings.Join(namesOf(all), ", "))
	case len(names) > 1:
		return refuse("%q names several processes: %s; name one of them", name, strings.Join(names, ", "))
	default:
		name = names[0]
	}
	did := a.partitioned(ctx, operator, act{Action: "release-worker", verb: "end the leases of", Topic: topic, Group: group, Worker: name, Unit: "message"})
	for _, w := range workers {
		did.Count += w.InHand
	}
	if ok, err := a.agreed(ctx, did); !ok {
		return err
	}
	did.Count = 0
	for _, w := range workers {
		ended := 0
		if err = ctx.Err(); err == nil {
			ended, err = operator.ReleaseWorker(context.WithoutCancel(ctx), w)
		}
		if did.Count += ended; err != nil {
			break
		}
	}
	a.record(ctx, operator, did.noted(), err)
	if err != nil {
		return err
	}
	a.done(did)
	if slices.ContainsFunc(workers, func(w admin.Worker) bool { return w.Heard }) {
		a.out.note("Redis still hears the process. If it hangs, stop it: once it goes on, it may get messages again.")
	}
	return nil
}
