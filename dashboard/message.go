package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// messagePage is the page of one message.
type messagePage struct {
	Gone      bool // it has ended, and a history has it
	Topic     string
	Message   admin.Message
	Published time.Time // zero: unknown
	Events    []event
	Metadata  []pair
	Contents  bool
	content   // of the payload
	Bytes     int
	Waits     bool // it is waiting, or waits for a retry
	DeadIn    []string
	AliveIn   []string // groups that may get it, or have it
	Settings  []pair
}

// event is a line of the timeline.
type event struct {
	At      time.Time // zero: unknown, and the event lasts
	Text    string
	Group   string
	State   admin.State // "": it is about no group
	More    []string    // what else is known
	Reason  string
	By      string    // the program that has it
	Due     time.Time // when what is in hand was due; zero: unknown
	planned bool      // it is to come
}

// Tone is the class of the mark in the timeline.
func (e event) Tone() string {
	switch e.State {
	case admin.Dead:
		return "critical"
	case admin.Retrying:
		return "warning"
	case admin.InHand:
		return "notice"
	case "":
		if e.planned {
			return "planned"
		}
	}
	return "fine"
}

func (d *Dashboard) message(c *call) (*view, error) {
	topic, id := c.q("t"), strings.TrimSpace(c.q("id"))
	ref := admin.ByID(id)
	if name := strings.TrimSpace(c.q("name")); name != "" && id == "" {
		ref = admin.ByDelayID(name)
	}
	get := func(ref admin.Ref) (readMessage, error) { return d.readMessage(c.ctx, topic, ref) }
	read, err := get(ref)
	if err != nil && errors.Is(err, admin.ErrNotFound) && id != "" {
		if read, err = get(admin.ByDelayID(id)); err != nil {
			err = fmt.Errorf("%w (nor is it a delay ID)", err)
		}
	}
	if errors.Is(err, admin.ErrNotFound) || errors.Is(err, admin.ErrTooLate) {
		gone, fault := d.endedMessage(c, topic, cmp.Or(id, strings.TrimSpace(c.q("name"))))
		if gone != nil {
			return gone, nil
		}
		if fault != nil {
			err = fmt.Errorf("%w; what became of it is not known: %v", err, fault)
		}
	}
	if err != nil {
		return nil, err
	}
	m := read.message
	p := &messagePage{Topic: topic, Message: m, Published: published(m.ID), Contents: c.user.Contents, Bytes: read.bytes}
	stats, _ := d.read(c.ctx, topic) // without it, the limits of groups stay unknown
	p.Events = timeline(m, p.Published, stats, d.sweep.now())
	for _, place := range m.Places {
		p.Waits = p.Waits || place.State == admin.Waiting || place.State == admin.Retrying
		if place.State == admin.Dead {
			p.DeadIn = append(p.DeadIn, place.Group)
		} else if place.Group != "" {
			p.AliveIn = append(p.AliveIn, place.Group)
		}
	}
	p.Settings = settings(m)
	if p.Contents && !c.live() { // news have no contents
		p.Metadata, p.content = d.metadata(m.Metadata, shownValue), *read.content
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {topic, d.address("/topic", "t", topic)}}
	return &view{Title: "Message " + m.ID, Crumbs: crumbs, Now: d.sweep.now(), Live: true, Data: p}, nil
}

// readMessage is a message without its payload, and the payload as it is shown.
type readMessage struct {
	message admin.Message
	content *content
	bytes   int // of the payload
}

// readMessage returns a message as it was lately.
func (d *Dashboard) readMessage(ctx context.Context, topic string, ref admin.Ref) (readMessage, error) {
	return cached(ctx, &d.reads, fmt.Sprintf("message:%q:%s", ref, topic), func(ctx context.Context) (readMessage, error) {
		m, err := d.admin.Get(ctx, topic, ref)
		if err != nil {
			return readMessage{}, err
		}
		payload := m.Payload
		m.Payload = nil // it may be long, and is kept for a while
		shows := d.contents.of(topic+"\x00"+m.ID, func() content { return d.names.contentOf(payload) })
		return readMessage{m, shows, len(payload)}, nil
	})
}

// settings are what the message says about itself.
func settings(m admin.Message) (pairs []pair) {
	if m.MaxDeliveries != 0 {
		text := "unlimited"
		if m.MaxDeliveries > 0 {
			text = texts.Number(m.MaxDeliveries)
		}
		pairs = append(pairs, pair{Key: "Deliveries at most", Value: text})
	}
	if m.MaxLateness != 0 {
		pairs = append(pairs, pair{Key: "Late at most", Value: duration(m.MaxLateness)})
	}
	if m.OnExpiry != "" {
		pairs = append(pairs, pair{Key: "If it is too late", Value: string(m.OnExpiry)})
	}
	return pairs
}

// timeline tells what became of a message in each group, and what is to come, as far as Redis has
// it. It has no single deliveries, but how many failed and the last reason.
func timeline(m admin.Message, published time.Time, stats admin.Stats, now time.Time) []event {
	var events []event
	if !published.IsZero() {
		events = append(events, event{At: published, Text: "Published"})
	}
	for _, p := range m.Places {
		events = append(events, placed(m, p, groupOf(stats, p.Group))...)
	}
	if !m.ExpiresAt.IsZero() {
		events = append(events, event{At: m.ExpiresAt, Text: "Expires", planned: true})
	}
	when := func(e event) time.Time {
		if e.At.IsZero() {
			return now
		}
		return e.At
	}
	slices.SortStableFunc(events, func(a, b event) int { return when(a).Compare(when(b)) })
	return events
}

// placed tells what is known about a message in one group, or while it is waiting in all.
func placed(m admin.Message, p admin.Place, g admin.GroupStats) []event {
	e := event{At: p.At, Group: p.Group, State: p.State, Reason: p.Reason, More: delivered(m, p, g)}
	then := event{Group: p.Group, planned: true}
	switch p.State {
	case admin.Waiting:
		e.Text = "Waits until it is due, in all groups"
	case admin.Ready:
		e.Text = "Ready: waits for a consumer"
	case admin.InHand:
		e.Text, e.At, e.Due, e.By = "In hand of a consumer", p.InHandSince, p.ClaimedDue, p.Worker
		then.At, then.Text = p.At, "Its lease ends, unless it is extended"
	case admin.Retrying:
		e.Text = "Failed, and waits for its next delivery"
	case admin.Dead:
		e.Text = "Dead letter"
		if g.DeadRetention > 0 {
			then.At, then.Text = p.At.Add(g.DeadRetention), "Is deleted"
		}
	default:
		e.Text, e.More = stateWords(p.State), append(e.More, texts.UnsureWhy)
	}
	if then.At.IsZero() {
		return []event{e}
	}
	return []event{e, then}
}

// delivered says what Redis keeps of the deliveries of a message in a group.
func delivered(m admin.Message, p admin.Place, g admin.GroupStats) (said []string) {
	switch most := cmp.Or(m.MaxDeliveries, g.MaxDeliveries); {
	case p.Deliveries > 0 && most > 0:
		said = append(said, fmt.Sprintf("%s of at most %s failed", texts.Many(p.Deliveries, "delivery"), texts.Number(most)))
	case p.Deliveries > 0:
		said = append(said, texts.Many(p.Deliveries, "delivery")+" failed")
	case p.Redelivered:
		said = append(said, "it was delivered before, or may have been, which does not count")
	}
	if p.Expiries > 0 {
		said = append(said, texts.Many(p.Expiries, "lease")+" in a row expired: its process crashed or stood still")
	}
	return said
}

// groupOf returns a group of a topic, empty if it is not known.
func groupOf(s admin.Stats, name string) admin.GroupStats {
	for _, g := range s.Groups {
		if g.Group == name {
			return g
		}
	}
	return admin.GroupStats{}
}

// published returns the time in an ID, which is a ULID, by the publisher's clock.
func published(id string) time.Time {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	if len(id) != 26 {
		return time.Time{}
	}
	ms := int64(0)
	for _, r := range id[:10] {
		i := strings.IndexRune(digits, r)
		if i < 0 {
			return time.Time{}
		}
		ms = ms<<5 | int64(i)
	}
	return time.UnixMilli(ms)
}
