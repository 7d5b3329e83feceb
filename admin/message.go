package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// State is where a message is. Its text is "pending", "ready", "unack", "retry" or "dead", as in the keys of Redis: "unack"
// is what GroupStats counts as InHand, and "retry" what it counts as Retrying.
type State string

const (
	// Pending messages wait for their due time. They are that for all groups.
	Pending = State(operate.Pending)
	// Ready messages wait for a subscription that takes them.
	Ready = State(operate.Ready)
	// InHand messages are with a subscription, under its lease.
	InHand = State(operate.Unack)
	// Retrying messages were nacked, and wait for the next delivery.
	Retrying = State(operate.Retry)
	// Dead messages are dead letters.
	Dead = State(operate.Dead)
	// Unknown is said by Get of a message that one of several groups may have ready, or may be done with.
	Unknown = State("")
)

// Message is a message in Redis.
type Message struct {
	// ID is its own ID, the same in all groups; DelayID what its publisher named it, or "".
	ID, DelayID string

	// UUID, Metadata and Payload are what the consumer gets, but for the delay. They are empty if Err says why
	// the Unmarshaler refused the body.
	UUID     string
	Metadata message.Metadata
	Payload  []byte
	Err      error

	// MaxDeliveries is the message's own limit; 0: that of the group, negative: none.
	MaxDeliveries int

	// ExpiresAt and MaxLateness say when it is too late for the message; zero: never. OnExpiry says what
	// happens then.
	ExpiresAt   time.Time
	MaxLateness time.Duration
	OnExpiry    redisdelay.OnExpiry

	// Places are where it is: one for all groups while it is pending, else one for each group that has it.
	// A message out of List has the one that was asked for.
	Places []Place
}

// Place is where a message is in one group.
type Place struct {
	// Group is the name of the group; "" for Pending.
	Group string
	State State

	// At is when the message is due (Pending, Ready, Retrying), when its lease ends (InHand) or when it died
	// (Dead). Get does not know it for Ready.
	At time.Time

	// Deliveries counts those that failed and count; Redelivered tells that it was, or may have been,
	// delivered before.
	Deliveries  int
	Redelivered bool

	// Reason says why it died, or what the handler said the last time, if redisdelay.KeepError kept it.
	Reason string
}

// Get returns a message and where it is. Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Get(ctx context.Context, topic string, ref Ref) (m Message, err error) {
	err = a.about(ctx, topic, ref, "get", queue.Finding, func(t *operate.Topic) error {
		found, err := t.Find(ctx, ref.ref)
		if err != nil {
			return err
		}
		m = a.message(topic, found.ID, found.Options, found.Body)
		if !found.Due.IsZero() {
			m.Places = []Place{{State: Pending, At: found.Due}}
		}
		for _, g := range found.Groups {
			m.Places = append(m.Places, Place{Group: g.Group, State: State(g.State), At: g.At, Deliveries: g.Deliveries,
				Redelivered: g.Delivered, Reason: g.Reason})
		}
		return nil
	})
	return m, err
}

func (a *Admin) message(topic, id string, o queue.Options, body []byte) Message {
	m := Message{ID: id, DelayID: o.DelayID, MaxDeliveries: o.MaxDeliveries}
	if body == nil {
		m.Err = errNoBody
		return m
	}
	msg, _, err := a.unmarshal(topic, body)
	if err != nil {
		m.Err = err
		return m
	}
	// What has a field of its own. Publish refuses what cannot be read.
	m.ExpiresAt, _ = time.Parse(time.RFC3339, msg.Metadata.Get(redisdelay.ExpiresAtKey))
	m.MaxLateness, _ = time.ParseDuration(msg.Metadata.Get(redisdelay.MaxLatenessKey))
	m.OnExpiry = redisdelay.OnExpiry(msg.Metadata.Get(redisdelay.OnExpiryKey))
	if e := o.Expiry; e != (queue.Expiry{}) { // of a message for a stream, whose metadata does not say it
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

// notForConsumers are keys that are stored with a message and that consumers do not see.
var notForConsumers = []string{
	redisdelay.DelayIDKey, redisdelay.ExpiresAtKey, redisdelay.MaxLatenessKey, redisdelay.OnExpiryKey,
}

// unmarshal leaves the body as it is: the Unmarshaler owns what it gets. What it refuses may be in the form for a
// stream.
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

// Filter chooses messages. Its zero value chooses all; what is set has to be true of a message together.
type Filter struct {
	// Metadata has pairs that the message's metadata has too.
	Metadata map[string]string

	// Reason is a part of Place.Reason.
	Reason string

	// From and Until are about Place.At: not before the one, and before the other.
	From, Until time.Time

	// Match is asked last, if it is not nil.
	Match func(Message) bool
}

func (f Filter) matches(m Message) bool {
	for key, value := range f.Metadata {
		if got, ok := m.Metadata[key]; !ok || got != value {
			return false
		}
	}
	at := m.Places[0].At
	return strings.Contains(m.Places[0].Reason, f.Reason) &&
		(f.From.IsZero() || !at.Before(f.From)) &&
		(f.Until.IsZero() || at.Before(f.Until)) &&
		(f.Match == nil || f.Match(m))
}

// needsBodies tells whether it looks at more than where messages are.
func (f Filter) needsBodies() bool { return len(f.Metadata) > 0 || f.Match != nil }

// Query says what List is to return.
type Query struct {
	// State is required. Group is, but for Pending; default redisdelay.DefaultConsumerGroup.
	State State
	Group string

	// Filter chooses among the messages.
	Filter Filter

	// Cursor is where the page begins: "", or the Next of the page before, for the same State and Group.
	Cursor string

	// Limit is how many messages are looked at, so how many there are at most. Default 100, at most 1,000.
	// A page is also full with about 4 MiB of messages.
	Limit int
}

// Page is what List returns.
type Page struct {
	Messages []Message
	Next     string // the Cursor of the next page; "": there is none
}

// List returns a page of messages in one state, in order of Place.At and ID. With a Filter a page may be
// empty and not be the last.
//
// Pages of all states but Ready and InHand stay right while messages come and go: one that stays where it is all the
// time is in exactly one of them. Ready is a list that is used at both ends, so from page to page some may be
// there twice or be passed over. InHand is in order of the ends of leases. Consumers extend those again and again, so what
// was in a page comes again in a later one, and there may be a next one for as long as it is asked for: set a limit.
// A topic or group that there is not has no messages.
//
// Errors wrap ErrInvalidArgument, or come from ctx or Redis.
func (a *Admin) List(ctx context.Context, topic string, q Query) (Page, error) {
	t, err := a.topic(ctx, topic, queue.Listing)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	group := groupName(q.Group)
	listed, err := t.List(ctx, group, operate.State(q.State), q.Cursor, cmp.Or(max(q.Limit, 0), 100), pageBytes)
	if err != nil {
		return Page{}, fmt.Errorf("list messages of group %q of topic %q: %w", group, topic, err)
	}
	page := Page{Next: listed.Next}
	for _, l := range listed.Messages {
		m := a.listed(topic, group, q.State, l)
		if q.Filter.matches(m) {
			page.Messages = append(page.Messages, m)
		}
	}
	return page, nil
}

// pageBytes is how many bytes of messages a page has, about.
const pageBytes = 4 << 20

func (a *Admin) listed(topic, group string, state State, l operate.Listed) Message {
	m := a.message(topic, l.ID, l.Options, l.Body)
	place := Place{Group: group, State: state, At: l.At, Deliveries: l.Deliveries, Redelivered: l.Delivered, Reason: l.Reason}
	if state == Pending {
		place.Group = ""
	}
	m.Places = []Place{place}
	return m
}
