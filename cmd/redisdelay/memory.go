package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) memoryCommand() *cobra.Command {
	limit := 20
	c := &cobra.Command{Use: "memory [TOPIC...]", Short: "what topics take in Redis, by state: an estimate, largest first", ValidArgsFunction: a.completeTopic,
		Long: `Estimates what topics take in Redis, by the state of their messages, the largest topic first. It asks Redis by MEMORY USAGE
with 50 samples of each key, and for the length of about 200 messages of each topic that it shows. So it takes about as long
for a million messages as for a thousand. Streams of topics do not count.`,
		Example: "  redisdelay memory",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if limit < 0 {
				return refuse("--limit is %d; it must be 0 or more", limit)
			}
			return a.memory(ctx, args, limit)
		})}
	c.Flags().IntVar(&limit, "limit", limit, "show so many topics, the largest; 0: all")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) memory(ctx context.Context, topics []string, limit int) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = -1
	}
	use, err := operator.Memory(ctx, admin.MemoryOptions{Topics: topics, Largest: limit})
	if err != nil {
		return err
	}
	t := a.out.table("TOPIC", "MEMORY", "WAITING", "READY", "IN HAND", "RETRYING", "DEAD", "OTHER")
	for _, m := range use.Topics {
		if m.LeftOut != "" && m.Bytes == 0 {
			t.row(m, m.Topic, "left out", "", "", "", "", "", "")
			continue
		}
		t.row(m, m.Topic, texts.Bytes(m.Bytes), texts.Bytes(m.Waiting), texts.Bytes(m.Ready), texts.Bytes(m.InHand), texts.Bytes(m.Retrying), texts.Bytes(m.Dead), texts.Bytes(m.Other))
	}
	err = t.flush("There are no topics."+a.where(), nil)
	if len(use.Topics) > 0 {
		a.out.note("%s", use)
	}
	return err
}
