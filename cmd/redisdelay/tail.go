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

// tailed is the object of a message in the command tail.
type tailed struct {
	Topic    string            `json:"topic"`
	ID       string            `json:"id"`
	UUID     string            `json:"uuid"`
	Due      time.Time         `json:"due"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload,omitempty"`
	Err      error             `json:"error,omitempty"`
}

// tailing are the flags of the command tail.
type tailing struct {
	view  payloadView
	limit int
	lasts time.Duration
}

func (a *app) tailCommand() *cobra.Command {
	var t tailing
	c := &cobra.Command{Use: "tail TOPIC", Short: "print messages as they become due", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Long: `Prints messages that become due from now on, until Ctrl-C. It only looks, ten times a second: it takes no message,
has no group, and leaves nothing in Redis. A message with a longer delay is read a second before it is due. So it is
printed whatever becomes of it, a retry too, unless two looks are further apart. A message without a delay is printed
if it is still there at the next look; at the end tail says about how many were not. Messages that were due before are not printed: see "redisdelay msg ls --state ready".`,
		Example: "  redisdelay tail orders --no-payload\n  redisdelay tail orders --for 10s --json",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.tail(ctx, args[0], t) })}
	c.Flags().IntVar(&t.limit, "limit", 0, "end after so many; 0: no limit")
	c.Flags().DurationVar(&t.lasts, "for", 0, "end after this time; 0: never")
	t.view.declare(c.Flags())
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) tail(ctx context.Context, topic string, t tailing) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if t.limit < 0 || t.lasts < 0 {
		return refuse("--limit and --for must be 0 or more")
	}
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	if t.lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx) // a deadline would make an error of the call under way
		defer cancel()
		defer time.AfterFunc(t.lasts, cancel).Stop()
	}
	began := func() {
		a.out.note("Looking at topic %q, until Ctrl-C.", topic)
		if len(stats.Groups) == 0 {
			a.out.note("It has no group: what is due waits for the first one.")
		}
	}
	n, unreadable := 0, 0
	told, err := operator.Tail(ctx, topic, func(m admin.Message) bool {
		a.tailed(topic, m, t.view)
		if n++; m.Err != nil {
			unreadable++
		}
		return (t.limit == 0 || n < t.limit) && a.out.out.failed == nil
	}, admin.TailOptions{Began: began})
	if err != nil {
		return err
	}
	if unreadable > 0 {
		a.out.note("%s", a.otherMarshaler(unreadable))
	}
	if told.Unseen > 0 && (t.limit == 0 || n < t.limit) {
		a.out.note("About %s more became due, and were done with or cancelled between two looks.", texts.Many(told.Unseen, "message"))
	}
	return nil
}

func (a *app) tailed(topic string, m admin.Message, view payloadView) {
	said := tailed{Topic: topic, ID: m.ID, UUID: m.UUID, Due: m.Places[0].At, Metadata: m.Metadata, Payload: m.Payload, Err: m.Err}
	text := fmt.Sprintf("%s  %s  %s", stamp(said.Due), said.ID, strconv.Quote(m.UUID))
	switch {
	case m.Err != nil:
		text += "  " + view.short(m)
	case view.none:
		said.Payload = nil
	default:
		payload, _, _ := view.text(m.Payload)
		text += "  " + payload
	}
	a.out.say(said, "%s", text)
}
