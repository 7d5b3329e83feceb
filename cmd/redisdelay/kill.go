package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) killCommand() *cobra.Command {
	var group, reason string
	kill := a.msgCommandOn("kill", "make a dead letter of a message in any state", `Makes a dead letter of a message in any state. If a handler has it, the handler's context ends.
One that is not due yet is in no group, so it becomes a dead letter of every group, and --group is refused.
To find a message that is ready, the list of ready messages is read, so this takes time with its length.`, `orders 01M7Y3SQGNBVX5P66MY8JV56FH --reason "kills its workers"`, func(f *pflag.FlagSet) {
		f.StringVar(&reason, "reason", "", "the reason of the dead letter, behind killed:; default by whom")
		a.consentFlags(f)
	}, func(ctx context.Context, o *admin.Admin, topic string, m admin.Message) error {
		if reason == "" {
			reason = "by " + a.who()
		}
		named, of, err := a.killed(ctx, topic, group, m)
		if err != nil {
			return err
		}
		return a.onOne(ctx, o, act{Action: "kill", Topic: topic, Group: of, ID: m.ID}, reason, func() error {
			was, err := o.Kill(context.WithoutCancel(ctx), topic, admin.GroupMessage{Group: named, ID: m.ID}, admin.KillOptions{Reason: reason})
			if was == admin.Dead {
				a.out.note("It was a dead letter already.")
			}
			return err
		})
	})
	a.groupFlag(kill, &group)
	return kill
}

// killed returns a group for Kill, and the groups that get the dead letter. A message that waits is
// in no group yet, and goes to all of them.
func (a *app) killed(ctx context.Context, topic, group string, m admin.Message) (named, of string, err error) {
	if !slices.ContainsFunc(m.Places, func(p admin.Place) bool { return p.State == admin.Waiting }) {
		_, g, err := a.groupOf(ctx, topic, group)
		return g.Group, g.Group, err
	}
	_, stats, err := a.stats(ctx, topic)
	if err != nil {
		return "", "", err
	}
	var all []string
	for _, g := range stats.Groups {
		all = append(all, g.Group)
	}
	switch {
	case len(all) == 0:
		return "", "", fmt.Errorf("topic %q has no group that could keep a dead letter; msg cancel takes the message back", topic)
	case group != "" && (len(all) > 1 || all[0] != group):
		return "", "", refuse("message %s waits, and is in no group yet: to kill it makes a dead letter of every group, %s; leave out --group for that",
			m.ID, texts.Names(all))
	}
	return all[0], strings.Join(all, ", "), nil
}
