package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

// states are those that a message can be listed in.
var states = []string{string(admin.Waiting), string(admin.Ready), string(admin.InHand), string(admin.Retrying), string(admin.Dead)}

// stateName returns a state in words.
func stateName(s admin.State) string { return texts.State(string(s)) }

func (a *app) msgCommand() *cobra.Command {
	var q listing
	list := &cobra.Command{Use: "ls TOPIC", Short: "messages in one state", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay msg ls orders --state waiting --metadata kind=gift",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			state := strings.ReplaceAll(q.state, "-", "_")
			if !slices.Contains(states, state) {
				return refuse("--state is %q; it must be one of %s", q.state, strings.Join(states, ", "))
			}
			return a.list(ctx, args[0], admin.State(state), q)
		})}
	list.Flags().StringVar(&q.state, "state", "waiting", "`state`: waiting, ready, in_hand, retrying or dead")
	a.listFlags(list, &q, false)

	var by naming
	var view payloadView
	get := &cobra.Command{Use: "get TOPIC MESSAGE", Short: "one message, with its payload, and where it is", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay msg get orders \"order 123\"",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			return a.show(ctx, args[0], args[1], by, view, "")
		})}
	by.declare(get.Flags())
	view.declare(get.Flags())
	a.jsonFlag(get.Flags())

	const meant = `A delay ID means the message that waits for its due time. If there is none, it means all that retry under it, in all
groups. If a group has one of these ready, in hand or dead, nothing changes. An ID means one message, in the groups in which it waits.`
	cancelled := a.waitWork("cancel")
	cancel := a.msgCommandBy("cancel", "take back messages that wait", meant+manyMeant+"\nWith --export it first writes them to a file, from which msg import brings them back.",
		`orders "order 123"`, cancelled, a.consentFlags,
		func(ctx context.Context, o *admin.Admin, topic string, m admin.Message, ref admin.Ref) error {
			return a.onOne(ctx, o, act{Action: "cancel", Topic: topic, ID: m.ID}, m.DueText(), func() error { return o.Cancel(context.WithoutCancel(ctx), topic, ref) })
		})
	cancel.Example += "\n  redisdelay msg cancel orders --metadata kind=gift --export gifts.ndjson"
	var in, at string
	moved := a.waitWork("reschedule")
	reschedule := a.msgCommandBy("reschedule", "give messages that wait another due time", meant+"\nA time at or after expires_at is refused."+manyMeant+`
A shift by --by needs --export FILE, so that the command can be run again with --from FILE and moves none twice.
Without a time, --from gives each message the due time that it has in the file.`, `orders "order 123" --in 2h`, moved, func(f *pflag.FlagSet) {
		f.StringVar(&in, "in", "", "due after this `duration`; a negative one is now")
		f.StringVar(&at, "at", "", "due at this `time`, such as \"tomorrow 9:00\", 2h (from now) or 2026-11-27T09:00:00Z; a past one is now")
		a.consentFlags(f)
		f.Lookup("by").Usage = "what MESSAGE is, as for msg get; without MESSAGE, move each due time by this `duration`, such as 2h or -30m"
	}, func(ctx context.Context, o *admin.Admin, topic string, m admin.Message, ref admin.Ref) error {
		when, err := due(in, at)
		if err != nil {
			return err
		}
		return a.unasked(ctx, o, act{Action: "reschedule", Topic: topic, ID: m.ID}, joined(dueText(in, at), m.DueText()), func() error {
			return o.Reschedule(context.WithoutCancel(ctx), topic, ref, when)
		})
	})
	reschedule.Example += "\n  redisdelay msg reschedule orders --metadata kind=gift --by 2h --export gifts.ndjson"
	moved.when = func() (admin.When, time.Duration, string, error) {
		by := reschedule.Flags().Lookup("by").Value.String()
		if given := map[bool]int{true: 1}[by != ""] + map[bool]int{true: 1}[in != ""] + map[bool]int{true: 1}[at != ""]; given != 1 {
			if given == 0 && moved.from != "" {
				return admin.When{}, 0, "", nil
			}
			return admin.When{}, 0, "", refuse("set one of --by, --in and --at")
		}
		if by == "" {
			when, err := due(in, at)
			return when, 0, dueText(in, at), err
		}
		d, err := time.ParseDuration(by)
		if err != nil || d == 0 {
			return admin.When{}, 0, "", refuse("--by is %q; without MESSAGE it must be a duration such as 2h or -30m", by)
		}
		return admin.When{}, d, "by " + by, nil
	}
	delivered := a.waitWork("deliver-now")
	now := a.msgCommandBy("now", "have messages that wait delivered now", meant+manyMeant, `orders "order 123"`, delivered, a.consentFlags,
		func(ctx context.Context, o *admin.Admin, topic string, m admin.Message, ref admin.Ref) error {
			return a.unasked(ctx, o, act{Action: "deliver-now", verb: "deliver", Topic: topic, ID: m.ID}, m.DueText(), func() error {
				return o.Reschedule(context.WithoutCancel(ctx), topic, ref, admin.When{})
			})
		})
	now.Example += "\n  redisdelay msg now orders --state retrying --group billing --over 10m"
	return a.family("msg", "messages, one or many: look, cancel, reschedule, kill", list, get, cancel, reschedule, now,
		a.importWaitsCommand(), a.moveMessagesCommand(), a.killCommand(),
	)
}

// joined returns texts with commas between those that are not empty.
func joined(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}

// due returns the time of --in and --at.
func due(in, at string) (admin.When, error) {
	switch {
	case (in == "") == (at == ""):
		return admin.When{}, refuse("set either --in or --at")
	case at != "":
		t, err := instant(time.Now(), "--at", at, when.Future)
		return admin.At(t), err
	default:
		d, err := time.ParseDuration(in) // a negative one is now, as a past time is
		if err != nil {
			return admin.When{}, refuse("--in is %q; it must be a duration such as 2h", in)
		}
		return admin.In(d), nil
	}
}

// dueText returns the time of --in and --at in words.
func dueText(in, at string) string {
	if in != "" {
		return "in " + in
	}
	return "at " + at
}

// onOne asks, and does one act to one message.
func (a *app) onOne(ctx context.Context, operator *admin.Admin, w act, detail string, do func() error) error {
	w.Count, w.Unit = 1, "message"
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	return a.didOne(ctx, operator, w, detail, do())
}

// unasked is onOne for an act that loses nothing.
func (a *app) unasked(ctx context.Context, operator *admin.Admin, w act, detail string, do func() error) error {
	if a.consent.dryRun {
		return a.onOne(ctx, operator, w, detail, do)
	}
	return a.didOne(ctx, operator, w, detail, do())
}

// didOne prints what came of an act to one message, and records it.
func (a *app) didOne(ctx context.Context, operator *admin.Admin, w act, detail string, err error) error {
	w.Count, w.Unit = 1, "message"
	noted := w.noted()
	noted.Detail = detail
	a.record(ctx, operator, noted, err)
	if err == nil {
		a.done(w)
	}
	return err
}

// listing are the flags of a list.
type listing struct {
	group, state string
	choose       choosing
	view         payloadView
}

func (a *app) listFlags(c *cobra.Command, q *listing, dead bool) {
	a.groupFlag(c, &q.group)
	q.choose.declare(c.Flags(), dead)
	if dead {
		a.completeReason(c, &q.group)
	}
	c.Flags().Lookup("limit").DefValue = "100"
	q.choose.limit = 100
	q.view.declare(c.Flags())
	a.jsonFlag(c.Flags())
}

func (a *app) list(ctx context.Context, topic string, state admin.State, q listing) error {
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return err
	}
	group := ""
	if state != admin.Waiting {
		_, g, err := a.groupOf(ctx, topic, q.group)
		if err != nil {
			return err
		}
		group = g.Group
	}
	filter, err := q.choose.filter(stats.Now)
	if err != nil {
		return err
	}
	if err := q.view.check(); err != nil {
		return err
	}
	at := map[admin.State]string{admin.InHand: "LEASE ENDS", admin.Dead: "DIED"}[state]
	if at == "" {
		at = "DUE"
	}
	header := []string{at, "ID", "DELAY ID", "UUID", "FAILED", "REASON", "PAYLOAD"}
	if state == admin.InHand {
		header = slices.Insert(header, 1, "IN HAND SINCE", "WORKER")
	}
	if stats.Partitions != nil {
		header = append([]string{"PARTITION"}, header...)
	}
	t := a.out.table(header...)
	shown, more, unreadable := 0, false, 0
	err = pages(ctx, operator, topic, admin.Query{State: state, Group: group, Filter: filter, Limit: 1000}, func(m admin.Message) bool {
		if more = q.choose.limit > 0 && shown == q.choose.limit; more {
			return false
		}
		if m.Err != nil {
			unreadable++
		}
		place := m.Places[0]
		cells := []any{place.At, m.ID, m.DelayID, cut(m.UUID, 36), place.Deliveries, cut(place.Reason, 60), faint.in(q.view.short(m), true)}
		if state == admin.InHand {
			cells = slices.Insert(cells, 1, any(place.InHandSince), any(place.Worker))
		}
		if stats.Partitions != nil {
			cells = append([]any{m.Topic}, cells...)
		}
		t.row(q.view.without(m), cells...)
		shown++
		return true
	})
	err = t.flush(a.noneFound(stats, state, group, q.choose), err)
	if unreadable > 0 {
		a.out.note("%s", a.otherMarshaler(unreadable))
	}
	if more {
		a.out.note("There are more; --limit says how many are shown.")
	}
	return err
}

// noneFound says which messages a list without a result has looked at.
func (a *app) noneFound(stats admin.Stats, state admin.State, group string, choose choosing) string {
	all, of := stats.Waiting, ""
	for _, g := range stats.Groups {
		if g.Group == group && state != admin.Waiting {
			of = fmt.Sprintf(" in group %q", group)
			all = map[admin.State]int{admin.Ready: g.Ready, admin.InHand: g.InHand, admin.Retrying: g.Retrying, admin.Dead: g.Dead}[state]
		}
	}
	if all == 0 {
		return fmt.Sprintf("Topic %q has no messages in state %s%s.%s", stats.Topic, stateName(state), of, a.where())
	}
	text := fmt.Sprintf("None of %s of topic %q in state %s%s is chosen", texts.Many(all, "message"), stats.Topic, stateName(state), of)
	if by := choose.String(); by != "" {
		text += " by: " + by
	}
	if len(choose.metadata) > 0 {
		text += fmt.Sprintf("; they were read with --marshaler %s", a.marshaler.value)
	}
	return text + "."
}

// otherMarshaler says what to do about payloads that cannot be read.
func (a *app) otherMarshaler(n int) string {
	other := map[string]string{"binary": "json", "json": "binary"}[a.marshaler.value]
	return fmt.Sprintf("%s could not be read with --marshaler %s. If the publishers use another Marshaler, try --marshaler %s.", texts.Many(n, "message"), a.marshaler.value, other)
}

// show prints a message, in any state or only as a dead letter.
func (a *app) show(ctx context.Context, topic, name string, by naming, view payloadView, only admin.State) error {
	operator, err := a.admin()
	if err == nil {
		err = view.check()
	}
	if err != nil {
		return err
	}
	m, _, err := a.find(ctx, operator, topic, name, by)
	if err != nil {
		return a.showEnded(ctx, operator, topic, name, by, err)
	}
	if only != "" && !slices.ContainsFunc(m.Places, func(p admin.Place) bool { return p.State == only }) {
		return fmt.Errorf("message %s of topic %q is no dead letter: %w", m.ID, topic, admin.ErrNotFound)
	}
	if m.Err != nil {
		a.out.note("%s", a.otherMarshaler(1))
	}
	if a.out.json {
		a.out.object(view.without(m))
		return nil
	}
	say := func(name, format string, args ...any) { a.out.say(nil, "%-12s %s", name, fmt.Sprintf(format, args...)) }
	if m.Topic != "" {
		say("partition", "%s", m.Topic)
	}
	say("ID", "%s", m.ID)
	say("UUID", "%s", m.UUID)
	if m.DelayID != "" {
		say("delay ID", "%s", m.DelayID)
	}
	for i, key := range slices.Sorted(maps.Keys(m.Metadata)) {
		say(map[bool]string{true: "metadata"}[i == 0], "%s=%s", key, m.Metadata[key])
	}
	if m.MaxDeliveries != 0 {
		say("deliveries", "at most %d", m.MaxDeliveries)
	}
	if !m.ExpiresAt.IsZero() {
		say("expires", "%s, then %s", stamp(m.ExpiresAt), m.OnExpiry)
	}
	if m.MaxLateness != 0 {
		say("expires", "%s after it is due, then %s", m.MaxLateness, m.OnExpiry)
	}
	for _, p := range m.Places {
		where := map[bool]string{true: "all groups"}[p.Group == ""]
		if where == "" {
			where = fmt.Sprintf("group %q", p.Group)
		}
		text := where + ": " + stateName(p.State)
		if !p.At.IsZero() {
			text += map[admin.State]string{admin.InHand: ", lease ends ", admin.Dead: " since "}[p.State]
			if p.State != admin.InHand && p.State != admin.Dead {
				text += ", due "
			}
			text += stamp(p.At)
		}
		if p.Worker != "" {
			text += ", since " + stamp(p.InHandSince) + " by " + p.Worker
		}
		if p.Deliveries > 0 {
			text += ", failed " + texts.Many(p.Deliveries, "delivery")
		}
		if p.State == admin.Unknown {
			text += ": " + texts.UnsureWhy
		}
		say("state", "%s", strings.Replace(text, "deliverys", "deliveries", 1))
		if p.Reason != "" {
			say("reason", "%s", p.Reason)
		}
	}
	for _, line := range view.lines(m) {
		a.out.say(nil, "%s", line)
	}
	return nil
}

// payloadView says how payloads are shown.
type payloadView struct {
	as   string
	cut  int
	none bool
}

func (v *payloadView) declare(flags *pflag.FlagSet) {
	flags.StringVar(&v.as, "payload", "auto", "show payloads as `form`: text, json, hex, or auto: what fits")
	flags.IntVar(&v.cut, "cut", 2000, "show at most so many bytes of a payload; 0: all")
	flags.BoolVar(&v.none, "no-payload", false, "hide payloads")
}

func (v *payloadView) check() error {
	if !slices.Contains([]string{"auto", "text", "json", "hex"}, v.as) {
		return refuse("--payload is %q; it must be auto, text, json or hex", v.as)
	}
	if v.cut < 0 {
		return refuse("--cut is %d; it must be 0 or more", v.cut)
	}
	return nil
}

// without returns the message for JSON, without its payload if that is hidden.
func (v *payloadView) without(m admin.Message) admin.Message {
	if v.none {
		m.Payload = nil
	}
	return m
}

// text returns the payload in a form that fits, the name of the form, and whether it is cut.
func (v *payloadView) text(payload []byte) (text, form string, isCut bool) {
	form = v.as
	var indented bytes.Buffer
	isJSON := form != "hex" && form != "text" && json.Indent(&indented, payload, "", "  ") == nil
	if form == "auto" {
		form = "hex"
		if utf8.Valid(payload) {
			form = "text"
		}
		if isJSON {
			form = "json"
		}
	}
	shown := payload
	if form == "json" && isJSON {
		shown = indented.Bytes()
	}
	if isCut = v.cut > 0 && len(shown) > v.cut; isCut {
		shown = shown[:v.cut]
	}
	if form == "hex" {
		return strings.TrimRight(hex.Dump(shown), "\n"), form, isCut
	}
	return string(shown), form, isCut
}

// lines returns the payload as lines.
func (v *payloadView) lines(m admin.Message) []string {
	switch {
	case m.Err != nil:
		return []string{"payload      cannot be read: " + m.Err.Error()}
	case v.none:
		return []string{fmt.Sprintf("payload      %s, hidden", texts.Many(len(m.Payload), "byte"))}
	}
	text, form, isCut := v.text(m.Payload)
	lines := []string{fmt.Sprintf("payload      %s, %s", texts.Many(len(m.Payload), "byte"), form)}
	for _, line := range strings.Split(text, "\n") {
		lines = append(lines, "  "+line)
	}
	if isCut {
		lines = append(lines, fmt.Sprintf("  … cut; --cut 0 shows all %s bytes", texts.Number(len(m.Payload))))
	}
	return lines
}

// short returns the payload on one line.
func (v *payloadView) short(m admin.Message) string {
	switch {
	case m.Err != nil:
		return "cannot be read: " + cut(m.Err.Error(), 40)
	case v.none:
		return texts.Many(len(m.Payload), "byte")
	case v.as == "hex" || v.as == "auto" && !utf8.Valid(m.Payload):
		return cut(hex.EncodeToString(m.Payload[:min(len(m.Payload), 40)]), 40)
	}
	return cut(string(m.Payload[:min(len(m.Payload), 200)]), 40)
}

// msgCommandOn returns a command on one message.
func (a *app) msgCommandOn(name, short, long, example string, flags func(*pflag.FlagSet), do func(ctx context.Context, o *admin.Admin, topic string, m admin.Message) error) *cobra.Command {
	return a.msgCommandBy(name, short, long, example, nil, flags, func(ctx context.Context, o *admin.Admin, topic string, m admin.Message, _ admin.Ref) error {
		return do(ctx, o, topic, m)
	})
}

// msgCommandBy returns a command on what a Ref means: one message, or all that retry under the
// delay ID by which m was found. If many is not nil, it is also a command on many messages.
func (a *app) msgCommandBy(name, short, long, example string, many *waitWork, flags func(*pflag.FlagSet), do func(ctx context.Context, o *admin.Admin, topic string, m admin.Message, ref admin.Ref) error) *cobra.Command {
	var by naming
	c := &cobra.Command{Use: name + " TOPIC MESSAGE", Short: short, Long: long, Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay msg " + name + " " + example,
		RunE: a.runs(func(ctx context.Context, args []string) error {
			if many != nil {
				if is, err := many.many(args); err != nil {
					return err
				} else if is {
					return many.run(ctx, args[0])
				}
			}
			operator, err := a.admin()
			if err != nil {
				return err
			}
			m, ref, err := a.find(ctx, operator, args[0], args[1], by)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(m.Places, func(p admin.Place) bool { return p.State == admin.Waiting }) {
				ref = admin.ByID(m.ID) // the message that is shown, even if another replaces it
			}
			return do(ctx, operator, args[0], m, ref)
		})}
	by.declare(c.Flags())
	if flags != nil {
		flags(c.Flags())
	}
	if many != nil {
		c.Use, c.Args = name+" TOPIC [MESSAGE]", cobra.RangeArgs(1, 2)
		many.declare(c)
	}
	a.jsonFlag(c.Flags())
	return c
}
