package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// waitWork is a command that runs an operation of package admin on many messages that wait.
type waitWork struct {
	a      *app
	op     admin.Operation
	choose choosing
	all    bool
	state  string
	group  string
	over   time.Duration
	export string // file to write first
	from   string // file of an earlier --export; "": none

	// when returns the time of the flags, and what they say in words. "" is none.
	when func() (when admin.When, by time.Duration, said string, err error)
}

// waitWork returns the work of the operation of a name.
func (a *app) waitWork(name string) *waitWork {
	op, _ := admin.OperationNamed(name)
	return &waitWork{a: a, op: op}
}

// choosers are the flags that choose messages, without which a command is about one message.
var choosers = []string{"all", "from", "since", "until", "metadata", "state", "group"}

const manyMeant = `
Without MESSAGE it is about many: those that the flags choose, or --all. They wait for their due time, or with --state
for a retry of a group, and --since and --until are of the due time. It counts them, asks, and changes them in chunks
of 50. It can be stopped between two chunks, and be run again. A message that does not wait any more when its turn comes
stays as it is.`

// declare adds the flags of many messages to a command on one message.
func (w *waitWork) declare(c *cobra.Command) {
	c.Long = w.op.Effect + "\n" + c.Long
	f := c.Flags()
	w.choose.declare(f, false)
	f.BoolVar(&w.all, "all", false, "all that wait, if no other flag chooses")
	f.StringVar(&w.state, "state", string(admin.Waiting), "`state`: waiting, retrying, or \"waiting,retrying\"")
	w.a.groupFlag(c, &w.group)
	f.Lookup("group").Usage = "consumer group whose retries are meant; needed if the topic has several"
	f.StringVar(&w.export, "export", "", "first write the messages to this new `file`, with their due times")
	f.StringVar(&w.from, "from", "", "only those that are in this `file` of --export, and due as it says")
	if w.op.Spreads {
		f.DurationVar(&w.over, "over", 0, "spread them evenly over this time, so that they do not come all at once")
	}
}

// many returns whether the command is about many messages, by its arguments and flags.
func (w *waitWork) many(args []string) (bool, error) {
	chosen := slices.ContainsFunc(choosers, w.a.given)
	other := slices.ContainsFunc([]string{"limit", "over", "export"}, w.a.given)
	switch {
	case w.a.given("all") && !w.all:
		return false, refuse("--all is false; leave it out")
	case len(args) > 1 && (chosen || other):
		return false, refuse("with MESSAGE there is nothing else to choose: leave out the flags for many messages")
	case len(args) > 1:
		return false, nil
	case !chosen:
		return false, refuse("name a MESSAGE; or choose many by --metadata, --since, --until or --state; or say --all")
	case w.export != "" && w.from != "":
		return false, refuse("--export and --from are set; the file of --from has the messages already")
	case w.all && w.choose.String() != "":
		return false, refuse("--all is with other flags that choose (%s); leave one out", w.choose.String())
	}
	return true, nil
}

func (w *waitWork) run(ctx context.Context, topic string) error {
	bulk := admin.Bulk{Limit: w.choose.limit, Spread: w.over}
	for _, name := range strings.Split(w.state, ",") {
		bulk.States = append(bulk.States, admin.State(strings.TrimSpace(name)))
	}
	if slices.ContainsFunc(bulk.States, func(s admin.State) bool { return s != admin.Waiting && s != admin.Retrying }) {
		return refuse("--state is %q; it must be waiting, retrying, or \"waiting,retrying\"", w.state)
	}
	when := ""
	if w.when != nil {
		var err error
		if bulk.When, bulk.By, when, err = w.when(); err != nil {
			return err
		}
		bulk.Back = when == ""
		if bulk.Back && w.over != 0 {
			return refuse("--over is without --in or --at")
		}
	}
	if bulk.By != 0 && w.export == "" && w.from == "" && !w.a.consent.dryRun {
		return refuse("--by needs --export FILE: if it is interrupted, only the file tells which messages have moved")
	}
	if _, err := os.Lstat(w.export); w.export != "" && err == nil {
		return refuse("--export %s: the file exists; name a new one, or go on with --from %s", w.export, quoted(w.export))
	}
	operator, stats, err := w.a.stats(ctx, topic)
	if err != nil {
		return err
	}
	if slices.Contains(bulk.States, admin.Retrying) {
		_, g, err := w.a.groupOf(ctx, topic, w.group)
		if err != nil {
			return err
		}
		bulk.Group = g.Group
	} else if w.group != "" {
		return refuse("--group is of retries; say --state retrying, or leave it out")
	}
	if bulk.Filter, err = w.choose.filter(stats.Now); err != nil {
		return err
	}
	if w.from != "" {
		bulk.Listed = listedIn(w.from, topic)
	}
	did := w.a.actOf(ctx, operator, w.op, topic)
	did.Group = bulk.Group
	count := bulk
	count.DryRun, count.Progress = true, func(p admin.Progress) {
		w.a.out.progress("Counting: %s found among %s", texts.Number(p.Done), texts.Many(p.Looked, w.op.Unit))
	}
	if did.Count, err = w.op.Run(ctx, operator, topic, count); err != nil {
		return err
	}
	if did.Count == 0 {
		did.DryRun = w.a.consent.dryRun
		w.a.done(did)
		return nil
	}
	phrase := did.String()
	if when != "" {
		phrase += " " + when
	}
	if ok, err := w.a.agreedTo(ctx, did, phrase); !ok {
		return err
	}
	file := w.from
	if w.export != "" {
		lost, err := w.write(ctx, operator, topic, bulk)
		if err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		if file = w.export; lost > 0 {
			w.a.out.note("%s without a body: not exported, and left as it is. See redisdelay check.", texts.Many(lost, w.op.Unit))
		}
		bulk.Listed = listedIn(file, topic)
	}
	return w.change(ctx, operator, did, bulk, when, file)
}

// change runs the operation, and says what came of it. file has the messages; "": none.
func (w *waitWork) change(ctx context.Context, operator *admin.Admin, did act, bulk admin.Bulk, when, file string) error {
	all := did.Count
	chosen := []string{"state " + w.state, w.choose.String(), when}
	if w.over > 0 {
		chosen = append(chosen, fmt.Sprintf("over %v", w.over))
	}
	if file != "" {
		chosen = append(chosen, "file "+file)
	}
	w.a.begins(ctx, operator, did, strings.Join(slices.DeleteFunc(chosen, func(s string) bool { return s == "" }), ", "))
	var last admin.Progress
	bulk.Progress = func(p admin.Progress) {
		last = p
		w.a.out.progress("%s: %s of %s", w.op.Name, texts.Number(p.Done), texts.Number(all))
	}
	var err error
	did.Count, err = w.op.Run(ctx, operator, did.Topic, bulk)
	w.a.record(ctx, operator, did.noted(), err)
	if last.Gone > 0 {
		w.a.out.note("%s did not wait for that time any more, and stay as they are.", texts.Many(last.Gone, w.op.Unit))
	}
	switch refused := last.Refused > 0 && ctx.Err() == nil; {
	case err != nil && !refused:
		w.a.out.note("%s of %s are done, the others are as they were. %s", texts.Number(did.Count), texts.Many(all, w.op.Unit), w.goOn(file))
		return err
	default:
		w.a.done(did)
		if hint := w.undo(did.Topic, file); hint != "" && did.Count > 0 {
			w.a.out.note("%s", hint)
		}
		return err
	}
}

// goOn says how an interrupted command goes on.
func (w *waitWork) goOn(file string) string {
	if w.export == "" {
		return "Run the command again to go on."
	}
	return fmt.Sprintf("Run the command again with --from %s instead of --export to go on.", quoted(file))
}

// undo says how to take back what was done with a file that an export wrote.
func (w *waitWork) undo(topic, file string) string {
	switch {
	case w.export == "":
		return ""
	case w.op.Deletes:
		return fmt.Sprintf("To bring them back: redisdelay msg import %s %s", quoted(topic), quoted(file))
	}
	return fmt.Sprintf("To give those that still wait their due times back: redisdelay msg reschedule %s --state %s --from %s", quoted(topic), w.state, quoted(file))
}

// quoted returns a text as an argument of a shell.
func quoted(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r))
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// exportedWait is the object of an exported message that waits. msg import needs ID, Topic,
// Partition, State, Group, Due and Stored. The others are for people, scripts and --from.
type exportedWait struct {
	ID            string              `json:"id"`
	Topic         string              `json:"topic"`
	Partition     string              `json:"partition,omitempty"`
	State         admin.State         `json:"state"`
	Group         string              `json:"group,omitempty"`
	Due           time.Time           `json:"due"`
	UUID          string              `json:"uuid"`
	DelayID       string              `json:"delay_id,omitempty"`
	Metadata      map[string]string   `json:"metadata,omitempty"`
	Payload       []byte              `json:"payload,omitempty"`
	MaxDeliveries int                 `json:"max_deliveries,omitempty"`
	ExpiresAt     time.Time           `json:"expires_at"`
	MaxLateness   time.Duration       `json:"max_lateness,omitempty"`
	OnExpiry      redisdelay.OnExpiry `json:"on_expiry,omitempty"`
	admin.Stored
}

// write writes the chosen messages to the file of --export, and returns how many are left out
// because Redis has lost their bodies. The file gets its name when it is whole and on the disk, so
// a file that is there is never half of what was chosen.
func (w *waitWork) write(ctx context.Context, operator *admin.Admin, topic string, bulk admin.Bulk) (lost int, err error) {
	folder := filepath.Dir(w.export)
	file, err := os.CreateTemp(folder, ".redisdelay-export-*")
	if err != nil {
		return 0, refuse("--export: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	buffer, done := bufio.NewWriter(file), 0
	one := func(m admin.Message) error {
		if m.Stored.Body == nil {
			lost++
			return nil
		}
		p := m.Places[0]
		line, err := encode(exportedWait{ID: m.ID, Topic: topic, Partition: m.Topic, State: p.State, Group: p.Group, Due: p.At, UUID: m.UUID, DelayID: m.DelayID, Metadata: m.Metadata,
			Payload: m.Payload, MaxDeliveries: m.MaxDeliveries, ExpiresAt: m.ExpiresAt, MaxLateness: m.MaxLateness, OnExpiry: m.OnExpiry, Stored: *m.Stored})
		if err != nil {
			return err
		}
		done++
		w.a.out.progress("Exported %s", texts.Many(done, w.op.Unit))
		_, err = buffer.Write(append(line, '\n'))
		return err
	}
	full := func() bool { return bulk.Limit > 0 && done+lost >= bulk.Limit }
	for _, state := range []admin.State{admin.Retrying, admin.Waiting} { // a message may come to retry meanwhile
		if !slices.Contains(bulk.States, state) {
			continue
		}
		var failed error
		q := admin.Query{State: state, Group: bulk.Group, Filter: bulk.Filter, Limit: 1000, Whole: true}
		err := pages(ctx, operator, topic, q, func(m admin.Message) bool {
			if full() {
				return false
			}
			failed = one(m)
			return failed == nil && !full()
		})
		if err = errors.Join(failed, err); err != nil {
			return lost, err
		}
	}
	if err := errors.Join(buffer.Flush(), file.Sync()); err != nil {
		return lost, err
	}
	if err := os.Link(file.Name(), w.export); err != nil { // it overwrites nothing
		return lost, refuse("--export: %w", err)
	}
	return lost, syncFolder(folder)
}

// syncFolder has the name of a new file on the disk. Some systems cannot do that for a folder.
func syncFolder(name string) error {
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	_ = folder.Sync()
	return folder.Close()
}

// waitsIn returns the messages in a file of --export, one by one.
func waitsIn(name string) iter.Seq2[exportedWait, error] {
	return func(yield func(exportedWait, error) bool) {
		file, err := os.Open(name)
		if err != nil {
			yield(exportedWait{}, refuse("%w: name a file that --export has written", err))
			return
		}
		defer file.Close()
		if is, err := file.Stat(); err != nil || !is.Mode().IsRegular() {
			yield(exportedWait{}, refuse("%s is not a regular file, and it is read more than once: write it to the disk first", name))
			return
		}
		lines := bufio.NewReaderSize(file, 1<<16)
		for n := 1; ; n++ {
			line, err := lines.ReadBytes('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				yield(exportedWait{}, err)
				return
			}
			ended := err != nil
			if line = bytes.TrimSpace(line); len(line) > 0 {
				var w exportedWait
				if err := jsontext.Read(line, &w); err == nil && (w.ID == "" || w.Due.IsZero() || w.State != admin.Waiting && w.State != admin.Retrying) {
					yield(w, refuse("line %d of %s is not an exported message that waits: it has no id, state or due", n, name))
					return
				} else if err != nil {
					yield(w, refuse("line %d of %s is not an exported message that waits: %w", n, name, err))
					return
				}
				if !yield(w, nil) {
					return
				}
			}
			if ended {
				return
			}
		}
	}
}

// listedIn returns the messages in a file of --export of a topic.
func listedIn(name, topic string) iter.Seq2[admin.Message, error] {
	return func(yield func(admin.Message, error) bool) {
		for w, err := range waitsIn(name) {
			if err == nil && w.Topic != topic {
				err = refuse("%s has message %s of topic %q; this is about topic %q", name, w.ID, w.Topic, topic)
			}
			if !yield(w.message(topic), err) || err != nil {
				return
			}
		}
	}
}
