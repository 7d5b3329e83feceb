package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// State is where a message is in a group.
type State string

const (
	Pending State = "pending" // waits for its due time; for all groups
	Ready   State = "ready"   // waits for a subscription
	Unack   State = "unack"   // in the hand of one
	Retry   State = "retry"   // waits for its next delivery
	Dead    State = "dead"
)

// Listed is a message as a page has it.
type Listed struct {
	ID         string
	At         time.Time // when it is or was due, its lease ends, or it died
	Options    Options
	Body       []byte // nil if the page is without bodies, or it is lost
	Deliveries int
	Delivered  bool // if it may have been
	Reason     string
}

// Page is some messages of one state, in order of time and ID.
type Page struct {
	Messages []Listed
	Next     string // where the next page begins; "": this is the last
}

// List returns the messages of a state from a cursor on, "" from the beginning: limit of them at most, a
// thousand at most, and about bytes of bodies; none if bytes is zero.
func (t *Topic) List(ctx context.Context, group string, state State, cursor string, limit, bytes int) (Page, error) {
	k := t.keys
	kind, records := "zset", k.Deliveries(group)
	var key string
	switch state {
	case Pending:
		key, records = k.Pending(), k.Options()
	case Ready:
		kind, key = "list", k.Ready(group)
	case Unack:
		key = k.Unack(group)
	case Retry:
		key = k.Retry(group)
	case Dead:
		key = k.Dead(group)
	default:
		return Page{}, fmt.Errorf("%w: there is no state %q; want %q, %q, %q, %q or %q", ErrInvalid, state, Pending, Ready, Unack, Retry, Dead)
	}
	score, id, err := parseCursor(kind, cursor)
	if err != nil {
		return Page{}, err
	}
	limit = min(max(limit, 1), 1000)
	size := ""
	if bytes > 0 {
		size = strconv.Itoa(bytes)
	}
	call := &Call{script: &pageScript, keys: []string{key, k.Messages(), k.Options(), records},
		args: []any{kind, score, id, limit, size}}
	if err := Do(ctx, t.client, call); err != nil {
		return Page{}, err
	}
	reply, err := call.cmd.Slice()
	if err != nil {
		return Page{}, err
	}
	return readPage(reply, state, kind, score)
}

// parseCursor reads where a page begins.
func parseCursor(kind, cursor string) (score, id string, err error) {
	if cursor == "" {
		return "", "", nil
	}
	score, id, ok := strings.Cut(cursor, ":")
	if kind == "zset" {
		ok = ok && isScore(score)
	} else {
		_, err := strconv.ParseUint(score, 10, 32)
		ok = !ok && err == nil
	}
	if !ok {
		return "", "", fmt.Errorf("%w: %q is no cursor of a page of this state", ErrInvalid, cursor)
	}
	return score, id, nil
}

// Bucket is a span of time and how many messages fall due in it.
type Bucket struct {
	From             time.Time
	Pending, Retries int
}

// Upcoming counts the messages that fall due in each of n spans of time, a thousand at most, from an instant
// on, or from now if it is zero: of pending, and the retries of a group.
func (t *Topic) Upcoming(ctx context.Context, group string, from time.Time, width time.Duration, n int) ([]Bucket, error) {
	if _, err := t.Existing(ctx); err != nil {
		return nil, err
	}
	begin := ""
	if !from.IsZero() {
		begin = strconv.FormatInt(from.UnixMilli(), 10)
	}
	call := &Call{script: &upcomingScript, keys: []string{t.keys.Pending(), t.keys.Retry(group)},
		args: []any{begin, millis(width), n}}
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	reply, err := call.cmd.Slice()
	if err != nil {
		return nil, err
	}
	return readUpcoming(reply, width, n)
}
