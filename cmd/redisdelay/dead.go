package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) deadCommand() *cobra.Command {
	var group string
	reasons := &cobra.Command{Use: "reasons TOPIC", Short: "dead letters by reason, with numbers and IDs folded", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead reasons orders",
		RunE: a.runs(func(ctx context.Context, args []string) error { return a.deadReasons(ctx, args[0], group) })}
	a.groupFlag(reasons, &group)
	a.jsonFlag(reasons.Flags())

	var q listing
	list := &cobra.Command{Use: "ls TOPIC", Short: "dead letters, oldest first", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay dead ls orders --reason timeout --since 2h",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.list(ctx, args[0], admin.Dead, q) })}
	a.listFlags(list, &q, true)

	var by naming
	var view payloadView
	show := &cobra.Command{Use: "show TOPIC MESSAGE", Short: "one dead letter, with its payload", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay dead show orders 01M7Y3SQGNBVX5P66MY8JV56FH",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.show(ctx, args[0], args[1], by, view, admin.Dead)
		})}
	by.declare(show.Flags())
	view.declare(show.Flags())
	a.jsonFlag(show.Flags())

	var exportedGroup string
	var exported choosing
	export := &cobra.Command{Use: "export TOPIC", Short: "write dead letters to standard output, a JSON object a line", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead export orders > orders.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.export(ctx, args[0], exportedGroup, exported)
		})}
	a.groupFlag(export, &exportedGroup)
	exported.declare(export.Flags(), true)
	a.completeReason(export, &exportedGroup)
	everyGroup := false
	importing := &cobra.Command{Use: "import TOPIC [FILE]", Short: "publish exported dead letters, due now", Args: cobra.RangeArgs(1, 2),
		Long: `Publishes exported dead letters, due now. FILE is by default -, standard input. Every group of the topic gets them:
if it has groups other than those of the file, the command says so and needs --every-group. Dead letters that are
still there go back to their own group by dead requeue. A dead letter that was imported within the last hour is left
out, so an interrupted import can be repeated.`,
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay dead import orders orders.ndjson",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.importLetters(ctx, args[0], args[1:], everyGroup)
		})}
	importing.Flags().BoolVar(&everyGroup, "every-group", false, "also deliver them to groups that did not export them")
	a.consentFlags(importing.Flags())
	a.jsonFlag(importing.Flags())
	commands := append([]*cobra.Command{reasons, list, show, export, importing}, a.workCommands("dead", admin.Dead)...)
	return a.family("dead", "dead letters: why, and what becomes of them", commands...)
}

func (a *app) deadReasons(ctx context.Context, topic, group string) error {
	operator, g, err := a.groupOf(ctx, topic, group)
	if err != nil {
		return err
	}
	reasons, err := operator.DeadReasons(ctx, topic, admin.Bulk{Group: g.Group, Progress: func(p admin.Progress) {
		a.out.progress("Reading: %s of %s", texts.Number(p.Looked), texts.Many(g.Dead, "dead letter"))
	}})
	if err != nil {
		return err
	}
	t := a.out.table("COUNT", "OLDEST", "NEWEST", "SAMPLE", "REASON")
	for _, r := range reasons.Reasons {
		t.row(r, r.Count, r.Oldest, r.Newest, r.Sample.ID, cut(reasons.Short(r), 120))
	}
	if shared := reasons.Shared(); shared != "" {
		a.out.note("%s", shared)
	}
	if reasons.Other > 0 {
		a.out.note("These are the first %s that were found. Dead letters of others: %s.", texts.Many(len(reasons.Reasons), "reason"), texts.Number(reasons.Other))
	}
	return t.flush(fmt.Sprintf("Group %q of topic %q has no dead letters.", g.Group, topic), nil)
}

func (a *app) export(ctx context.Context, topic, group string, choose choosing) error {
	operator, g, err := a.groupOf(ctx, topic, group)
	if err != nil {
		return err
	}
	_, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	filter, err := choose.filter(stats.Now)
	if err != nil {
		return err
	}
	done, unreadable := 0, 0
	query := admin.Query{State: admin.Dead, Group: g.Group, Filter: filter, Limit: 1000}
	err = pages(ctx, operator, topic, query, func(m admin.Message) bool {
		if m.Err != nil {
			unreadable++
			return true
		}
		a.out.object(m.Letter(topic, g.Group))
		if a.out.out.failed != nil {
			return false
		}
		done++
		a.out.progress("Exported %s of %s", texts.Number(done), texts.Many(g.Dead, "dead letter"))
		return choose.limit == 0 || done < choose.limit
	})
	if a.out.out.failed != nil {
		return a.out.out.failed
	}
	a.out.note("Exported %s.", texts.Many(done, "dead letter"))
	if err == nil && unreadable > 0 {
		err = fmt.Errorf("%s could not be read with --marshaler %s, and are not exported", texts.Many(unreadable, "dead letter"), a.marshaler.value)
	}
	return err
}

func (a *app) importLetters(ctx context.Context, topic string, file []string, everyGroup bool) error {
	text, err := a.input(file)
	if err != nil {
		return err
	}
	letters, err := readLetters(text)
	if err != nil {
		return err
	}
	operator, before, err := a.stats(ctx, topic)
	if err != nil {
		return err // a typo would make a new topic
	}
	if err := a.otherGroups(before, letters, everyGroup, "dead letters"); err != nil {
		return err
	}
	messages := again(letters)
	did := a.partitioned(ctx, operator, act{Action: "import", Topic: topic, Count: len(messages), Unit: "dead letter"})
	if ok, err := a.agreed(ctx, did); !ok {
		return err
	}
	publisher, err := a.publisherTo(before)
	if err != nil {
		return err
	}
	defer publisher.Close()
	a.begins(ctx, operator, did, "")
	did.Count = 0
	for some := range slices.Chunk(messages, 500) {
		err := ctx.Err()
		if err == nil {
			err = publisher.Publish(topic, some...)
		}
		if err != nil {
			a.record(ctx, operator, did.noted(), err)
			a.out.note("%s of %s are imported; repeat the command for the others.", texts.Number(did.Count), texts.Many(len(messages), "dead letter"))
			return err
		}
		did.Count += len(some)
		a.out.progress("Imported %s of %s", texts.Number(did.Count), texts.Many(len(messages), "dead letter"))
	}
	after, err := operator.Stats(context.WithoutCancel(ctx), topic)
	if err != nil {
		return err
	}
	if left := min(did.Count, max(0, after.Counters.LeftOut-before.Counters.LeftOut)); left > 0 {
		did.Count -= left
		a.out.note("%s left out, imported within the last hour.", texts.Many(left, "dead letter"))
	}
	a.record(ctx, operator, did.noted(), nil)
	a.done(did)
	return nil
}

// otherGroups says which groups of a topic get messages that they did not export; what is their
// name. Without consent to that it returns a refusal.
func (a *app) otherGroups(topic admin.Stats, letters []admin.Letter, everyGroup bool, what string) error {
	from := map[string]bool{}
	for _, l := range letters {
		from[l.Group] = true
	}
	var others []string
	for _, g := range topic.Groups {
		if !from[g.Group] {
			others = append(others, strconv.Quote(g.Group))
		}
	}
	if len(others) == 0 || len(letters) == 0 {
		return nil
	}
	quoted := []string{}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		quoted = append(quoted, strconv.Quote(name))
	}
	said := fmt.Sprintf("the %s are of group %s, and an import delivers them to every group of topic %q, also to %s",
		what, strings.Join(quoted, ", "), topic.Topic, strings.Join(others, ", "))
	if !everyGroup {
		return refuse("%s; --every-group does that", said)
	}
	a.out.note("%s.", strings.ToUpper(said[:1])+said[1:])
	return nil
}

// again returns the messages of exported dead letters. Each has a delay ID for an hour, so that a
// repeated import leaves it out.
func again(letters []admin.Letter) (messages []*message.Message) {
	for _, l := range letters {
		msg := message.NewMessage(l.UUID, l.Payload)
		for key, value := range l.Metadata {
			msg.Metadata.Set(key, value)
		}
		redisdelay.SetDelayID(msg, "imported "+l.Group+" "+l.ID, redisdelay.DelayIDKeep)
		redisdelay.SetDelayIDWindow(msg, time.Hour)
		messages = append(messages, msg)
	}
	return messages
}

// readLetters reads exported dead letters, byte for byte as they were.
func readLetters(text []byte) (letters []admin.Letter, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		l, err := readLetter(lines.Bytes())
		if err != nil {
			return nil, refuse("line %d is not an exported dead letter: %w", n, err)
		}
		letters = append(letters, l)
	}
	return letters, lines.Err()
}

func readLetter(line []byte) (l admin.Letter, err error) {
	if err := jsontext.Read(line, &l); err != nil {
		return l, err
	}
	var uuid struct {
		Plain   *string `json:"uuid"`
		Encoded *string `json:"uuid_base64"`
	}
	if err := json.Unmarshal(line, &uuid); err != nil {
		return l, err
	}
	if l.ID == "" || uuid.Plain == nil && uuid.Encoded == nil {
		return l, errors.New("it has no id or no uuid")
	}
	return l, nil
}

// input returns the content of a file, or of standard input.
func (a *app) input(file []string) ([]byte, error) {
	if len(file) == 0 || file[0] == "-" {
		if isTerminal(a.sys.stdin) {
			a.out.note("Reading from the terminal, until Ctrl-D.")
		}
		return io.ReadAll(a.sys.stdin)
	}
	text, err := os.ReadFile(file[0])
	if err != nil {
		return nil, refuse("%w: name a file, or - for standard input", err)
	}
	return text, nil
}
