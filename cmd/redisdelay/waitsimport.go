package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) importWaitsCommand() *cobra.Command {
	c := &cobra.Command{Use: "import TOPIC FILE", Short: "bring back messages that msg cancel has exported", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Long: `Brings messages of a file that msg cancel --export wrote back into the topic, under their IDs, with their due times,
delay IDs and all other settings. A retry comes back in its group alone, with its deliveries. A due time in the past stays so.
A message that is in the topic is left alone, so a cancel that was interrupted can be undone. One whose delay ID another
message has is named and left out. The command can be interrupted, and be run again. It then leaves out what it brought
back before and was delivered since: it knows a message until an hour after its due time, or after it came back if that
is later. A message that the cancel did not reach, and that was delivered since, comes back. Messages of another topic
come into TOPIC.`,
		Example: "  redisdelay msg import orders gifts.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.importWaits(ctx, args[0], args[1])
		})}
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

// waitsImport is a run of msg import.
type waitsImport struct {
	a           *app
	operator    *admin.Admin
	topic, file string
	all         int // messages in the file
}

func (a *app) importWaits(ctx context.Context, topic, file string) error {
	operator, _, err := a.stats(ctx, topic)
	if err != nil {
		return err // a typo would be an error of each message
	}
	i := waitsImport{a: a, operator: operator, topic: topic, file: file}
	for w, err := range waitsIn(file) { // before anything is changed
		if err != nil {
			return err
		}
		if w.Body == nil {
			return refuse("message %s of %s has no body; only a file of msg cancel --export has", w.ID, file)
		}
		i.all++
	}
	if i.all == 0 {
		return refuse("%s has no messages", file)
	}
	would, err := i.restore(ctx, true, false)
	if err != nil {
		return err
	}
	did := a.partitioned(ctx, operator, act{Action: "import", Topic: topic, Count: would.Messages, Unit: "message"})
	if would.Messages == 0 || a.consent.dryRun {
		if would, err = i.restore(ctx, true, true); err != nil {
			return err
		}
		did.Count, did.DryRun = would.Messages, a.consent.dryRun
		if did.Count > 0 {
			_, err := a.agreed(ctx, did)
			i.tell(would)
			return err
		}
		a.done(did)
		return i.tell(would)
	}
	if ok, err := a.agreed(ctx, did); !ok {
		return err
	}
	a.begins(ctx, operator, did, "file "+file)
	restored, err := i.restore(ctx, false, true)
	did.Count = restored.Messages
	a.record(ctx, operator, did.noted(), err)
	if err != nil {
		_ = i.tell(restored)
		a.out.note("%s of %s are imported; repeat the command for the others.", texts.Number(did.Count), texts.Many(would.Messages, "message"))
		return err
	}
	a.done(did)
	return i.tell(restored)
}

// restore restores the messages, or looks what would come of it. With named, it names those that
// are left out.
func (i *waitsImport) restore(ctx context.Context, dry, named bool) (admin.Restored, error) {
	verb := "Imported"
	if dry {
		verb = "Looking: would import"
	}
	r := admin.Restoring{DryRun: dry, Progress: func(done admin.Restored) {
		i.a.out.progress("%s %s of %s", verb, texts.Number(done.Messages), texts.Many(i.all, "message"))
	}}
	if named {
		r.Refused = func(m admin.Message, why error) {
			i.a.out.note("Message %s, UUID %s, is left out: %s", m.ID, m.UUID, why)
		}
	}
	return i.operator.Restore(ctx, i.topic, func(yield func(admin.Message, error) bool) {
		for w, err := range waitsIn(i.file) {
			if !yield(w.message(i.topic), err) || err != nil {
				return
			}
		}
	}, r)
}

// tell says which messages were left out, and returns an error if some were refused.
func (i *waitsImport) tell(restored admin.Restored) error {
	if restored.There > 0 {
		i.a.out.note("%s left out, in the topic already.", texts.Many(restored.There, "message"))
	}
	if restored.Ended > 0 {
		i.a.out.note("%s left out: an earlier import brought them back, and they have ended or moved to another topic since.", texts.Many(restored.Ended, "message"))
	}
	if restored.Refused > 0 {
		return fmt.Errorf("%s left out, as named above", texts.Many(restored.Refused, "message"))
	}
	return nil
}

// message returns the message as one of a topic.
func (w exportedWait) message(topic string) admin.Message {
	m := admin.Message{Topic: w.Partition, ID: w.ID, DelayID: w.DelayID, UUID: w.UUID, ExpiresAt: w.ExpiresAt, OnExpiry: w.OnExpiry, Metadata: w.Metadata, Payload: w.Payload,
		Places: []admin.Place{{Group: w.Group, State: w.State, At: w.Due}}, Stored: &w.Stored}
	if _, number, ok := partitions.Parse(w.Partition); ok && w.Topic != topic {
		m.Topic = partitions.Name(topic, number)
	}
	return m
}
