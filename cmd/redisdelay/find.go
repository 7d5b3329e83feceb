package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// searching are the flags of the command find.
type searching struct {
	by, cursor  string
	topics      []string
	metadata    map[string]string
	limit, most int
	view        payloadView
}

// found is the last object of the command find: where it looked.
type found struct {
	Ended  admin.SearchEnd       `json:"ended"`
	Next   string                `json:"next,omitempty"`
	Found  int                   `json:"found"`
	Looked int                   `json:"looked"`
	Of     int                   `json:"of"`
	Topics []admin.SearchedTopic `json:"topics"`

	Past      []admin.Ended           `json:"past"` // messages that ended
	Histories admin.SearchedHistories `json:"histories"`
}

func (a *app) findCommand() *cobra.Command {
	var f searching
	c := &cobra.Command{Use: "find [TEXT]", Short: "messages by ID, UUID, delay ID, key, metadata or text, in all states and topics", Args: cobra.MaximumNArgs(1),
		Long: `Finds messages in all states and groups, of the topics that are named or of all. Without --by, TEXT may be
in the ID, UUID, delay ID, payload or a value of the metadata, or be key=value of the metadata. An ID is looked up, which
is cheap, and so is a delay ID, before messages are read. IDs, UUIDs and delay IDs are looked up in the histories of groups
too: how a message ended, when, and by whom. It only looks. It ends at --limit or --most, and then says how
to go on. It says where it looked, and what it left out. Exit code 1: nothing was found.`,
		Example: "  redisdelay find 4711\n  redisdelay find \"order 4711\" --by delay-id --topic orders\n  redisdelay find --metadata kind=gift --limit 100 --json",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			filter, err := f.filter(args)
			if err != nil {
				return err
			}
			return a.search(ctx, f, filter)
		})}
	flags := c.Flags()
	flags.StringVar(&f.by, "by", "", "what TEXT is: `id`, delay-id, uuid, key (the partition key), metadata (key=value) or text (in the payload)")
	flags.StringArrayVar(&f.topics, "topic", nil, "look only in this `topic`; may be repeated")
	flags.StringToStringVar(&f.metadata, "metadata", nil, "only those with this `key=value` in their metadata; may be repeated")
	flags.IntVar(&f.limit, "limit", 20, "end when so many are found, at most 1000")
	flags.IntVar(&f.most, "most", admin.DefaultMost, "end when so many messages were read, one for each group that has it, or lines of histories")
	flags.StringVar(&f.cursor, "cursor", "", "go on where a search ended, which printed this `text`")
	_ = c.RegisterFlagCompletionFunc("topic", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completeTopic(cmd, nil, prefix)
	})
	f.view.declare(flags)
	a.jsonFlag(flags)
	return c
}

// filter returns the filter of the flags.
func (f *searching) filter(args []string) (filter admin.Filter, err error) {
	filter.Metadata = maps.Clone(f.metadata)
	text := ""
	if len(args) > 0 {
		text = args[0]
	}
	switch {
	case len(args) > 0 && text == "":
		return filter, refuse("TEXT is empty: every message has it")
	case len(args) == 0 && (f.by != "" || len(f.metadata) == 0):
		return filter, refuse("name what to find: a TEXT, or --metadata key=value")
	case f.limit < 1 || f.limit > 1000:
		return filter, refuse("--limit is %d; it must be from 1 to 1000", f.limit)
	case f.most < 1:
		return filter, refuse("--most is %d; it must be 1 or more", f.most)
	}
	switch f.by {
	case "":
		filter.Any = text
	case "id":
		filter.IDs = map[string]bool{text: true}
	case "delay-id":
		filter.DelayID = text
	case "uuid":
		filter.UUID = text
	case "key":
		filter.Key = text
	case "text":
		filter.Text = text
	case "metadata":
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return filter, refuse("TEXT is %q; with --by metadata it must be key=value", text)
		}
		if filter.Metadata == nil {
			filter.Metadata = map[string]string{}
		}
		filter.Metadata[key] = value
	default:
		return filter, refuse("--by is %q; it must be id, delay-id, uuid, key, metadata or text", f.by)
	}
	return filter, f.view.check()
}

func (a *app) search(ctx context.Context, f searching, filter admin.Filter) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	result, err := operator.Find(ctx, admin.Search{Topics: f.topics, Filter: filter, Limit: f.limit, Most: f.most, Cursor: f.cursor,
		Progress: func(p admin.SearchProgress) {
			a.out.progress("Looked at %s in %s of %s: %s found", texts.Many(p.Looked, "message"), texts.Number(p.Topics), texts.Many(p.AllTopics, "topic"),
				texts.Number(p.Found))
		}})
	if len(result.Topics) == 0 && err != nil {
		return err // it did not begin
	}
	t := a.out.table("TOPIC", "STATE", "GROUP", "TIME", "ID", "DELAY ID", "UUID", "FAILED", "REASON", "PAYLOAD")
	for _, m := range result.Messages {
		if a.out.json {
			t.row(f.view.without(m))
			continue
		}
		for _, p := range m.Places {
			t.row(nil, m.Topic, stateName(p.State), p.Group, p.At, m.ID, m.DelayID, cut(m.UUID, 36), p.Deliveries, cut(p.Reason, 60), faint.in(f.view.short(m), true))
		}
	}
	for _, e := range result.Past {
		if !a.out.json {
			t.row(nil, e.Topic, e.How, e.Group, e.At, e.ID, e.DelayID, cut(e.UUID, 36), "", endedText(e), "")
		}
	}
	failed := t.flush("Nothing was found.", nil)
	a.saidWhere(result)
	if a.out.json {
		a.out.object(found{result.Ended, result.Next, len(result.Messages), result.Looked, result.Of, result.Topics,
			append([]admin.Ended{}, result.Past...), result.Histories})
	}
	switch {
	case err != nil || failed != nil:
		return errors.Join(err, failed)
	case len(result.Messages)+len(result.Past) == 0:
		return errSaid
	}
	return nil
}

// saidWhere says where a search looked, what it left out, and how to go on.
func (a *app) saidWhere(f admin.Found) {
	for _, sentence := range f.Explain() {
		a.out.note("%s", sentence)
	}
	if unreadable := f.SearchedTotal().Unreadable; unreadable > 0 {
		a.out.note("%s", a.otherMarshaler(unreadable))
	}
	switch {
	case f.Next != "":
		args := slices.Clone(a.args)
		for i, arg := range args {
			if arg == "--cursor" && i+1 < len(args) {
				args = slices.Delete(args, i, i+2)
				break
			}
			if strings.HasPrefix(arg, "--cursor=") {
				args = slices.Delete(args, i, i+1)
				break
			}
		}
		if i := slices.Index(args, "--"); i >= 0 {
			args = slices.Insert(args, i, "--cursor="+f.Next)
		} else {
			args = append(args, "--cursor="+f.Next)
		}
		a.out.note("To go on: %s", commandLine(args...))
	case len(f.Messages)+len(f.Past) == 0:
		a.out.note("%s", strings.TrimSpace(a.where()))
	}
}
