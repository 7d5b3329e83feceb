package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) importWaitsCommand() *cobra.Command {
	everyGroup := false
	c := &cobra.Command{Use: "import TOPIC FILE", Short: "bring back messages that msg cancel has exported", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Long: `Publishes messages of a file that msg cancel --export wrote, with their UUID, due time, delay ID and expiry. A due time in
the past is now. A message that is still in the topic is left out, so a cancel that was interrupted can be undone. One whose
delay ID another message has is named and left out. A message without a delay ID gets one, "imported" and its ID, until
an hour after its due time: so the command can be run again. One with a delay ID of its own that is due before that comes
again. Every group gets the messages. If the file has retries of a group, and the topic has other groups, it needs
--every-group.`,
		Example: "  redisdelay msg import orders gifts.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.importWaits(ctx, args[0], args[1], everyGroup)
		})}
	c.Flags().BoolVar(&everyGroup, "every-group", false, "also deliver retries to groups that did not have them")
	a.consentFlags(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

// waitsImport is a run of msg import.
type waitsImport struct {
	a         *app
	operator  *admin.Admin
	publisher message.Publisher
	topic     string
	done      int
	there     int // that are in the topic already
	clashes   int // that were refused, each of which is named
}

func (a *app) importWaits(ctx context.Context, topic, file string, everyGroup bool) error {
	operator, before, err := a.stats(ctx, topic)
	if err != nil {
		return err // a typo would make a new topic
	}
	count := 0
	retries := map[string]bool{} // groups
	for w, err := range waitsIn(file) {
		switch {
		case err != nil:
			return err
		case w.UUID == "" && w.Payload == nil && len(w.Metadata) == 0:
			return refuse("message %s of %s has no UUID, payload and metadata; a message that could not be read cannot be brought back", w.ID, file)
		case w.State == admin.Retrying:
			retries[w.Group] = true
		}
		count++
	}
	var others []string
	for _, g := range before.Groups {
		if len(retries) > 0 && !retries[g.Group] {
			others = append(others, g.Group)
		}
	}
	if err := a.otherGroups(topic, slices.Sorted(maps.Keys(retries)), others, everyGroup, "retries"); err != nil {
		return err
	}
	did := a.partitioned(ctx, operator, act{Action: "import", Topic: topic, Count: count, Unit: "message"})
	if ok, err := a.agreed(ctx, did); !ok {
		return err
	}
	publisher, err := a.publisherTo(before)
	if err != nil {
		return err
	}
	defer publisher.Close()
	a.begins(ctx, operator, did, "file "+file)
	i := waitsImport{a: a, operator: operator, publisher: publisher, topic: topic}
	err = i.all(ctx, file, count)
	did.Count = i.done
	a.record(ctx, operator, did.noted(), err)
	if i.there > 0 {
		a.out.note("%s left out, in the topic already.", texts.Many(i.there, "message"))
	}
	if err != nil {
		a.out.note("%s of %s are imported; repeat the command for the others.", texts.Number(i.done), texts.Many(count, "message"))
		return err
	}
	a.done(did)
	if i.clashes > 0 {
		return fmt.Errorf("%s left out, as named above", texts.Many(i.clashes, "message"))
	}
	return nil
}

// all imports the messages of a file, in chunks.
func (i *waitsImport) all(ctx context.Context, file string, count int) error {
	var chunk []exportedWait
	flush := func() error {
		some := chunk
		chunk = nil
		if len(some) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := i.publish(some...)
		for n := 0; err != nil && isRefused(err) && n < len(some); n++ { // none of the chunk is published
			if one := i.publish(some[n]); one == nil || isRefused(one) {
				if one != nil {
					i.refused(some[n], one)
				}
				if n == len(some)-1 {
					err = nil
				}
			} else {
				err = one
			}
		}
		i.a.out.progress("Imported %s of %s", texts.Number(i.done), texts.Many(count, "message"))
		return err
	}
	for w, err := range waitsIn(file) {
		if err != nil {
			return err
		}
		is, err := i.isThere(ctx, w)
		if err != nil {
			return err
		}
		if is {
			i.there++
			continue
		}
		if chunk = append(chunk, w); len(chunk) == 500 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// isThere returns whether the topic has a message, or the one that an earlier import made of it.
func (i *waitsImport) isThere(ctx context.Context, w exportedWait) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	plain := w.Partition
	if plain == "" || w.Topic != i.topic {
		plain = i.topic
	}
	for _, ref := range []admin.Ref{admin.ByID(w.ID), admin.ByDelayID(importedName(w))} {
		m, err := i.operator.Get(ctx, plain, ref)
		switch {
		case errors.Is(err, admin.ErrTooLate): // it was imported, and is due
			return w.DelayID == "", nil
		case errors.Is(err, admin.ErrNotFound):
		case err != nil:
			return false, err
		case m.ID == w.ID && w.State == admin.Retrying:
			if slices.ContainsFunc(m.Places, func(p admin.Place) bool { return p.Group == w.Group }) {
				return true, nil // else other groups have it, and this one would never get it
			}
		case m.ID == w.ID || m.UUID == w.UUID:
			return true, nil
		}
	}
	return false, nil
}

// importedName returns the delay ID of an imported message.
func importedName(w exportedWait) string {
	if w.DelayID != "" {
		return w.DelayID
	}
	return "imported " + w.ID
}

// isRefused returns whether an error of Publish is about a message, and not about Redis.
func isRefused(err error) bool {
	return errors.Is(err, redisdelay.ErrExists) || errors.Is(err, redisdelay.ErrPastExpiry) || errors.Is(err, redisdelay.ErrInvalidMetadata) || errors.Is(err, redisdelay.ErrInvalidDelay)
}

// refused names a message that is left out.
func (i *waitsImport) refused(w exportedWait, err error) {
	i.clashes++
	i.a.out.note("Message %s, UUID %s, is left out: %s", w.ID, w.UUID, err)
}

// publish publishes messages, all or none.
func (i *waitsImport) publish(some ...exportedWait) error {
	var messages []*message.Message
	for _, w := range some {
		msg := message.NewMessage(w.UUID, w.Payload)
		for key, value := range w.Metadata {
			msg.Metadata.Set(key, value)
		}
		redisdelay.DelayUntil(msg, w.Due)
		redisdelay.SetDelayID(msg, importedName(w), redisdelay.DelayIDReject)
		if w.DelayID == "" {
			redisdelay.SetDelayIDWindow(msg, time.Hour)
		}
		if w.MaxDeliveries != 0 {
			redisdelay.SetMaxDeliveries(msg, w.MaxDeliveries)
		}
		then := redisdelay.OnExpiry(w.OnExpiry)
		if !w.ExpiresAt.IsZero() {
			redisdelay.ExpireAt(msg, w.ExpiresAt, then)
		}
		if w.MaxLateness > 0 {
			redisdelay.ExpireAfter(msg, w.MaxLateness, then)
		}
		messages = append(messages, msg)
	}
	err := i.publisher.Publish(i.topic, messages...)
	if err == nil {
		i.done += len(messages)
	}
	return err
}
