package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

func (a *app) killCommand() *cobra.Command {
	var group, reason string
	kill := a.msgCommandOn("kill", "make a dead letter of a message in any state", `Makes a dead letter of a message in any state. If a handler has it, the handler's context ends.
One that is not due yet becomes a dead letter of every group.
To find a message that is ready, the list of ready messages is read, so this takes time with its length.`, `orders 01M7Y3SQGNBVX5P66MY8JV56FH --reason "kills its workers"`, func(f *pflag.FlagSet) {
		f.StringVar(&reason, "reason", "", "the reason of the dead letter, behind killed:; default by whom")
		a.consentFlags(f)
	}, func(ctx context.Context, o *admin.Admin, topic string, m admin.Message) error {
		if reason == "" {
			reason = "by " + a.who()
		}
		_, g, err := a.groupOf(ctx, topic, group)
		if err != nil {
			return err
		}
		of := g.Group
		if slices.ContainsFunc(m.Places, func(p admin.Place) bool { return p.State == admin.Pending }) {
			_, stats, err := a.stats(ctx, topic)
			if err != nil {
				return err
			}
			var all []string
			for _, g := range stats.Groups {
				all = append(all, g.Group)
			}
			of = strings.Join(all, ", ")
		}
		return a.onOne(ctx, o, act{Action: "kill", Topic: topic, Group: of, ID: m.ID}, reason, func() error {
			was, err := o.Kill(context.WithoutCancel(ctx), topic, g.Group, m.ID, reason)
			if was == admin.Dead {
				a.out.note("It was a dead letter already.")
			}
			return err
		})
	})
	a.groupFlag(kill, &group)
	return kill
}
