package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// State is the state of a message: "waiting", "ready", "in_hand", "retrying" or "dead".
type State string

const (
	// Waiting messages wait for their due time, in all groups.
	Waiting State = operate.Waiting
	// Ready messages are due and wait for a subscription to claim them.
	Ready State = operate.Ready
	// InHand messages are leased by a subscription.
	InHand State = operate.InHand
	// Retrying messages were nacked with a delay, and wait for it.
	Retrying State = operate.Retrying
	// Dead messages are dead letters.
	Dead State = operate.Dead
	// Unknown is returned by Get if, with several groups, the message may be ready or settled in a
	// group.
	Unknown State = ""
)

// Message is a message in Redis.
type Message struct {
	// Topic is the partition that has the message, if a partitioned topic was asked. Otherwise it
	// is "".
	Topic string `json:"topic,omitempty"`

	// ID is the message's ID, the same in all groups. DelayID is the publisher's name for it, or
	// "".
	ID      string `json:"id"`
	DelayID string `json:"delay_id,omitempty"`

	// UUID, Metadata and Payload are what the consumer gets, except for the delay. If the
	// Unmarshaler refused the body, Err says why, and they are empty.
	UUID     string           `json:"uuid,omitempty"`
	Metadata message.Metadata `json:"metadata,omitempty"`
	Payload  []byte           `json:"payload,omitempty"`
	Err      error            `json:"error,omitempty"`

	// MaxDeliveries is the message's own limit. 0 means the group's limit, negative means no limit.
	MaxDeliveries int `json:"max_deliveries,omitempty"`

	// ExpiresAt and MaxLateness say when the message expires; zero means never. OnExpiry says what
	// happens then.
	ExpiresAt   time.Time           `json:"expires_at"`
	MaxLateness time.Duration       `json:"max_lateness,omitempty"`
	OnExpiry    redisdelay.OnExpiry `json:"on_expiry,omitempty"`

	// Places has one Place for all groups while the message waits, else one for each group
	// that has it. A message from List has only the Place that was asked for.
	Places []Place `json:"places"`

	// Stored is for Restore. List returns it if Query.Whole asks for it. It is not in JSON.
	Stored *Stored `json:"-"`
}

// Stored is what Redis has of a message beside the other fields, in the form of
// docs/redis-keys.md. Restore needs it.
type Stored struct {
	// Body is the output of the Marshaler, and Options are the message's settings. Record is what
	// the group of the first Place knows of its deliveries.
	Body    []byte `json:"body"`
	Options string `json:"options,omitempty"`
	Record  string `json:"record,omitempty"`

	// DelayIDUntil is when the message's delay ID is free. Zero means that it does not have that.
	DelayIDUntil time.Time `json:"delay_id_until"`

	// Stream tells that Body is for a topic with a Redis Stream.
	Stream bool `json:"stream,omitempty"`
}

// Place is the state of a message in one group.
type Place struct {
	// Group is the name of the group, "" for Waiting.
	Group string `json:"group,omitempty"`
	State State  `json:"state"`

	// At is when the message is due (Waiting, Ready, Retrying), when its lease ends (InHand), or
	// when it became dead (Dead). From Get it is zero for Ready.
	At time.Time `json:"at"`

	// InHandSince is when a subscription claimed the message (InHand), by the server's clock.
	// Extensions of the lease do not change it. It is zero in other states.
	InHandSince time.Time `json:"in_hand_since"`

	// ClaimedDue is when a message in hand was due, for its first delivery or for a retry. It is
	// zero in other states.
	ClaimedDue time.Time `json:"claimed_due"`

	// Subscription is the subscription that has the message (InHand), as in Worker.Subscription. It
	// is not in JSON.
	Subscription string `json:"-"`

	// Worker is the process that has the message (InHand), in words, as Worker.Process returns it.
	// It is "" if that is not known any more.
	Worker string `json:"worker,omitempty"`

	// Deliveries is the number of failed deliveries that count. Redelivered is true if the message
	// was, or may have been, delivered before.
	Deliveries  int  `json:"deliveries"`
	Redelivered bool `json:"redelivered,omitempty"`

	// Expiries is how many leases of the message have expired in a row, because its process crashed
	// or stood still. It is only known from Get.
	Expiries int `json:"expiries,omitempty"`

	// Reason is why the message became dead, or the handler's last error if redisdelay.KeepError
	// kept it.
	Reason string `json:"reason,omitempty"`
}

// Get returns a message and its places. With ByDelayID that is the message which has the delay ID,
// or else the last published one of those that retry under it. Errors wrap ErrTooLate if the delay
// ID is taken for its window, and its message is gone, ErrNoMessage if there is none, or
// ErrInvalidArgument for a Ref that names none.
func (a *Admin) Get(ctx context.Context, topic string, ref Ref) (m Message, err error) {
	var named *operate.Topic // has the message
	show := func(t *operate.Topic, found operate.Found) {
		if m.ID > found.ID {
			return // another partition has it, too
		}
		m = a.message(topic, t.Name, found.Stored)
		for _, p := range found.Places {
			m.Places = append(m.Places, readPlace(p))
		}
		named = t
	}
	err = a.about(ctx, topic, ref, "get", rights.Finding, func(t *operate.Topic) error {
		found, err := t.Find(ctx, ref.ref)
		if err == nil && m.ID == "" { // else another partition has it, too
			show(t, found)
		}
		return err
	}, func(t *operate.Topic) error {
		found, err := t.FindRetrying(ctx, ref.ref.DelayID)
		if err == nil {
			show(t, found)
		}
		return err
	})
	if err == nil && named != nil {
		some := []Message{m}
		err = nameWorkers(ctx, named, some)
		m = some[0]
	}
	return m, err
}

// nameWorkers notes the processes that have messages of a plain topic in hand.
func nameWorkers(ctx context.Context, t *operate.Topic, messages []Message) error {
	of := map[string][]*Place{} // by group
	for i := range messages {
		for n := range messages[i].Places {
			if p := &messages[i].Places[n]; p.State == InHand && p.Subscription != "" {
				of[p.Group] = append(of[p.Group], p)
			}
		}
	}
	for group, places := range of {
		for some := range slices.Chunk(places, 500) {
			names := make([]string, len(some))
			for i, p := range some {
				names[i] = p.Subscription
			}
			signs, err := t.Fields(ctx, t.Keys().Workers(group), names)
			if err != nil {
				return err
			}
			for i, p := range some {
				if signs[i] != "" {
					w := queue.ReadWorker(p.Subscription, signs[i])
					p.Worker = Worker{Host: w.Host, PID: w.PID, Program: w.Program, GoneSince: w.Gone}.Process()
				}
			}
		}
	}
	return nil
}

func readPlace(p operate.Place) Place {
	return Place{Group: p.Group, State: State(p.State), At: p.At, InHandSince: queue.LeasedAt(p.Token), ClaimedDue: queue.LeaseDue(p.Token),
		Subscription: queue.SubscriptionOf(p.Token), Deliveries: p.Record.Count, Redelivered: p.Record.Delivered(), Expiries: p.Expiries, Reason: p.Record.Reason}
}

// message returns a message of a plain topic that belongs to a topic.
func (a *Admin) message(topic, plain string, stored operate.Stored) Message {
	o, body := stored.Options, stored.Body
	m := Message{ID: stored.ID, DelayID: o.DelayID, MaxDeliveries: o.MaxDeliveries}
	if plain != topic {
		m.Topic = plain
	}
	if body == nil {
		m.Err = errNoBody
		return m
	}
	msg, _, err := a.unmarshal(plain, body)
	if err != nil {
		m.Err = err
		return m
	}
	// These have fields of their own. Errors are impossible, because Publish refuses bad values.
	m.ExpiresAt, _ = time.Parse(time.RFC3339, msg.Metadata.Get(redisdelay.ExpiresAtKey))
	m.MaxLateness, _ = time.ParseDuration(msg.Metadata.Get(redisdelay.MaxLatenessKey))
	m.OnExpiry = redisdelay.OnExpiry(msg.Metadata.Get(redisdelay.OnExpiryKey))
	if e := o.Expiry; e != (queue.Expiry{}) { // a message for a stream has no such metadata
		m.ExpiresAt, m.MaxLateness, m.OnExpiry = e.At, e.Lateness, redisdelay.ExpiryDrop
		if e.Dead {
			m.OnExpiry = redisdelay.ExpiryDead
		}
	}
	for _, key := range notForConsumers {
		delete(msg.Metadata, key)
	}
	m.UUID, m.Metadata, m.Payload = msg.UUID, msg.Metadata, msg.Payload
	return m
}

// notForConsumers are metadata keys that are stored with a message but hidden from consumers.
var notForConsumers = []string{
	redisdelay.DelayIDKey, redisdelay.ExpiresAtKey, redisdelay.MaxLatenessKey, redisdelay.OnExpiryKey,
}

// unmarshal returns the message of a body. A body that the Unmarshaler refuses may be in the form
// for a stream. The Unmarshaler gets a copy, because it may change the bytes.
func (a *Admin) unmarshal(topic string, body []byte) (msg *message.Message, forStream bool, err error) {
	msg, err = a.config.Unmarshaler.Unmarshal(topic, bytes.Clone(body))
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		if entry, refused := (redisdelay.StreamMarshaler{}).Unmarshal(topic, bytes.Clone(body)); refused == nil {
			return entry, true, nil
		}
	}
	return msg, false, err
}

// Filter chooses messages that meet all its conditions. The zero value chooses all messages.
type Filter struct {
	UUID, DelayID string            // must equal those of the message; "" means any
	IDs           map[string]bool   // if not nil, has true for the IDs of chosen messages; only read
	Metadata      map[string]string // pairs that must be in the message's metadata
	Key           string            // must equal the partition key, partition.KeyMetadata; "" means any
	Text          string            // must be contained in the payload, byte by byte
	// Reason must be contained in Place.Reason, as it is or as DeadReason.Reason has it. A "…" at
	// its ends stands for anything. "" means any.
	Reason string

	// Any is a text that somebody has of a message. It must be contained in the ID, UUID, delay ID,
	// payload or a value of the metadata, or be a pair of the metadata, such as "kind=gift".
	Any string

	// FoldedReason must equal the reason with "#" for each number and ID in it, as
	// DeadReason.Reason has it; "" means any.
	FoldedReason string

	From, Until time.Time          // From <= Place.At < Until; zero means no limit
	Match       func(Message) bool // if not nil, is called last and must return true
}

// Matches returns whether the filter chooses a message. Reason and times are judged by the first of
// Places, or as those of no place if there is none.
func (f Filter) Matches(m Message) bool {
	for key, value := range f.Metadata {
		if got, ok := m.Metadata[key]; !ok || got != value {
			return false
		}
	}
	if len(m.Places) == 0 {
		m.Places = []Place{{}}
	}
	at := m.Places[0].At
	return (f.IDs == nil || f.IDs[m.ID]) && (f.UUID == "" || f.UUID == m.UUID) && (f.DelayID == "" || f.DelayID == m.DelayID) && containsReason(m.Places[0].Reason, f.Reason) &&
		(f.FoldedReason == "" || f.FoldedReason == foldReason(m.Places[0].Reason)) &&
		(f.From.IsZero() || !at.Before(f.From)) &&
		(f.Until.IsZero() || at.Before(f.Until)) &&
		(f.Key == "" || f.Key == m.Metadata[partitions.KeyMetadata]) &&
		(f.Text == "" || bytes.Contains(m.Payload, []byte(f.Text))) && (f.Any == "" || hasText(m, f.Any)) &&
		(f.Match == nil || f.Match(m))
}

// hasText returns whether a text is somewhere in a message, as Filter.Any says.
func hasText(m Message, text string) bool {
	if strings.Contains(m.ID, text) || strings.Contains(m.DelayID, text) || strings.Contains(m.UUID, text) || bytes.Contains(m.Payload, []byte(text)) {
		return true
	}
	for key, value := range m.Metadata {
		if strings.Contains(value, text) || key+"="+value == text {
			return true
		}
	}
	return false
}

// needsBodies returns whether the filter uses the bodies of messages.
func (f Filter) needsBodies() bool {
	return f.UUID != "" || len(f.Metadata) > 0 || f.Key != "" || f.Text != "" || f.Any != "" || f.Match != nil
}

// Query selects a page of List.
type Query struct {
	// State is required. Group is ignored for Waiting; default redisdelay.DefaultConsumerGroup.
	State State
	Group string

	Filter Filter // chooses messages
	Cursor string // "" for the first page, else Page.Next of the one before, with State and Group

	// Limit is the maximum number of messages examined for a page. Default 100, at most 1,000. A
	// page also ends after about 4 MiB of messages.
	Limit int

	Whole bool // returns Message.Stored
}

// Page is the result of List.
type Page struct {
	Messages []Message `json:"messages"`
	Next     string    `json:"next,omitempty"` // the Cursor of the next page; "" if there is none
}

// List returns a page of messages in one state, in order of Place.At and ID. With a Filter, a page
// may be empty without being the last. A partitioned topic is listed partition by partition. Errors
// wrap ErrInvalidArgument for a wrong State or Cursor.
//
// A message that stays in its state is in exactly one page, whatever comes and goes, except for
// Ready and InHand. Ready is a list that changes at both ends, so a message may be in two pages or
// in none. InHand is in order of lease ends, which consumers extend. So a message may be in several
// pages, and the pages may never end: set a limit.
func (a *Admin) List(ctx context.Context, topic string, q Query) (Page, error) {
	err := fmt.Errorf("list: topic %q has no partitions: %w", topic, ErrNotFound)
	if !strings.Contains(q.Cursor, "/") { // else it is a cursor of partitions
		var page Page
		if page, err = a.page(ctx, topic, topic, q); !errors.Is(err, ErrNotFound) {
			return page, err
		}
	}
	parts, failed := a.parts(ctx, topic)
	if failed != nil && !errors.Is(failed, ErrForbidden) {
		return Page{}, fmt.Errorf("list: %w", failed)
	}
	return a.pageOf(ctx, topic, parts, q, err)
}

// pageOf returns a page of the first of some partitions that has one, from a cursor on. It returns
// the error if none has the group.
func (a *Admin) pageOf(ctx context.Context, topic string, parts []string, q Query, missing error) (Page, error) {
	from, cursor, err := cutCursor(q.Cursor)
	if len(parts) > 0 && err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	for i, plain := range parts {
		if numberOf(plain) < from {
			continue
		}
		if q.Cursor = ""; numberOf(plain) == from {
			q.Cursor = cursor
		}
		page, err := a.page(ctx, topic, plain, q)
		switch {
		case errors.Is(err, ErrNotFound):
			continue
		case err != nil:
			return Page{}, err
		case page.Next != "":
			page.Next = ofPartition(plain, page.Next)
		case i+1 < len(parts):
			page.Next = ofPartition(parts[i+1], "")
		}
		if missing = nil; len(page.Messages) > 0 || page.Next == "" {
			return page, nil
		}
	}
	return Page{}, missing
}

// page is List for a plain topic of a topic.
func (a *Admin) page(ctx context.Context, topic, plain string, q Query) (Page, error) {
	t, err := a.topic(ctx, plain, rights.Listing)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	group := groupName(q.Group)
	list := t.List
	if q.Whole {
		list = t.ListWhole
	}
	listed, err := list(ctx, group, string(q.State), q.Cursor, cmp.Or(max(q.Limit, 0), 100), pageBytes)
	if err != nil {
		return Page{}, fmt.Errorf("list messages of group %q of topic %q: %w", group, plain, err)
	}
	page := Page{Next: listed.Next}
	for _, l := range listed.Messages {
		m := a.listed(topic, plain, l)
		if q.Whole {
			m.Stored = &Stored{Body: l.Body, Options: l.Own, Record: l.Text, DelayIDUntil: queue.Instant(l.Free), Stream: listed.Stream}
		}
		if q.Filter.Matches(m) {
			page.Messages = append(page.Messages, m)
		}
	}
	return page, nameWorkers(ctx, t, page.Messages)
}

// pageBytes is the approximate maximum size of the messages in a page.
const pageBytes = 4 << 20

func (a *Admin) listed(topic, plain string, l operate.Listed) Message {
	m := a.message(topic, plain, l.Stored)
	m.Places = []Place{readPlace(l.Place)}
	return m
}
