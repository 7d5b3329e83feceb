package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// memory is how long Redis remembers the last numbered call of a publisher or subscription, to
// recognise a repeat. Clients repeat within seconds.
const memory = time.Hour

// Topic is a handle on one topic. Safe for concurrent use.
type Topic struct {
	Name string

	client *Client
	prefix string
	keys   Keys
	stream *StreamOptions // nil: the handle does not publish into a stream

	mu     sync.Mutex
	groups *Groups // as last read; nil: not read yet
}

// Groups is the set of a topic's consumer groups at one time.
type Groups struct {
	Version string
	Names   []string
	Stream  bool // the topic has a stream, and one group for it
	Single  bool // the topic has or had groups with SingleActive
}

// GroupOptions are the settings of a group that Redis stores.
type GroupOptions struct {
	MaxDeliveries int           // negative: no limit
	Retention     time.Duration // of dead messages; negative: for ever
	MaxDead       int           // dead messages that are kept at most; 0: no limit
	Expiry        time.Duration // the group is removed after this time without use; 0: never
	SingleActive  bool          // one subscription claims, others stand by
}

func (o GroupOptions) encode() string {
	maxDead := -1
	if o.MaxDead > 0 {
		maxDead = o.MaxDead
	}
	text := fmt.Sprintf("%d %s %d", max(o.MaxDeliveries, -1), millis(o.Retention), maxDead)
	if o.SingleActive {
		text += " single"
	}
	return text
}

// expiry returns an expiry as scripts read it: "" for a group that is never removed.
func expiry(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return millis(d)
}

// millis returns a duration as scripts read it: in milliseconds, rounded up; "-1" if negative.
func millis(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return strconv.FormatInt(CeilMillis(d), 10)
}

// CeilMillis returns a duration in milliseconds, rounded up.
func CeilMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return ms
}

// NewTopic returns a handle. It does not talk to Redis.
func NewTopic(client *Client, prefix, name string) *Topic {
	return &Topic{Name: name, client: client, prefix: prefix, keys: NewKeys(prefix, name)}
}

// Groups returns the set of groups as last read, and reads it the first time. It enters the topic
// in the registry before that, so that a scheduler finds every topic with messages.
func (t *Topic) Groups(ctx context.Context) (*Groups, error) {
	if groups := t.remembered(); groups != nil {
		return groups, nil
	}
	if err := t.Enroll(ctx); err != nil {
		return nil, err
	}
	call := t.openCall()
	if t.stream != nil {
		call = t.openStreamCall()
	}
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	groups, err := readGroups(call)
	if err != nil {
		return nil, err
	}
	// A process that deletes the topic at the same time may have removed the entry.
	if err := t.Enroll(ctx); err != nil {
		return nil, err
	}
	t.remember(groups)
	return groups, nil
}

// Existing is Groups, but returns ErrNotFound if there is no such topic, instead of making one.
func (t *Topic) Existing(ctx context.Context) (*Groups, error) {
	if groups := t.remembered(); groups != nil {
		return groups, nil
	}
	call := t.LookCall()
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	return t.ReadLook(call)
}

// openCall returns a call that opens the topic, and makes it if there is none.
func (t *Topic) openCall() *Call {
	return &Call{script: &openScript, keys: []string{t.keys.Meta(), t.keys.Groups()}, args: []any{Layout, Token()}}
}

// LookCall returns a call that reads the set of groups, and makes no topic. ReadLook reads its
// reply.
func (t *Topic) LookCall() *Call {
	return &Call{script: &lookScript, keys: []string{t.keys.Meta(), t.keys.Groups()}}
}

// ReadLook reads the reply of LookCall, and remembers the set. It returns ErrNotFound if there is
// no such topic.
func (t *Topic) ReadLook(call *Call) (*Groups, error) {
	if reply, err := call.cmd.Slice(); err == nil && len(reply) == 0 {
		return nil, fmt.Errorf("topic %q: %w", t.Name, ErrNotFound)
	}
	groups, err := readGroups(call)
	if err == nil {
		t.remember(groups)
	}
	return groups, err
}

// Register makes sure that the group exists with these options. If the group is being removed, it
// finishes the removal first, so the group is empty. It returns ErrTopicMode if the topic has a
// stream, and ErrGroupMode if the group has the other setting of SingleActive.
func (t *Topic) Register(ctx context.Context, group string, options GroupOptions) error {
	if err := t.Enroll(ctx); err != nil {
		return err
	}
	call := &Call{
		script: &registerScript,
		keys: []string{t.keys.Meta(), t.keys.Groups(), t.keys.Pending(), t.keys.Scheduler(),
			t.keys.Idle(), t.keys.Stats(group)},
		args: []any{Layout, Token(), group, options.encode(), expiry(options.Expiry)},
	}
	for {
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		reply, _ := call.cmd.Slice()
		if len(reply) == 1 && reply[0] == "mode" {
			return ErrGroupMode
		}
		if len(reply) != 1 {
			groups, err := readGroups(call)
			if err == nil {
				err = t.checkMode(groups)
			}
			if err == nil {
				t.remember(groups)
			}
			return err
		}
		if err := t.FinishRemovals(ctx, []string{group}); err != nil {
			return err
		}
	}
}

// readGroups reads the reply of a call that opens a topic or registers a group.
func readGroups(call *Call) (*Groups, error) {
	reply, err := call.cmd.StringSlice()
	if err != nil || len(reply) < 2 {
		return nil, fmt.Errorf("unexpected reply %v: %w", reply, err)
	}
	if reply[0] != Layout && reply[0] != StreamLayout && reply[0] != SingleLayout {
		return nil, fmt.Errorf("%w: it is %q, this program writes %q", ErrLayout, reply[0], Layout)
	}
	slices.Sort(reply[2:]) // the server's order changes
	return &Groups{Version: reply[1], Names: reply[2:], Stream: reply[0] == StreamLayout, Single: reply[0] == SingleLayout}, nil
}

// remembered returns the set of groups as last read, or nil.
func (t *Topic) remembered() *Groups {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.groups
}

func (t *Topic) remember(groups *Groups) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.groups = groups
}

// Forget drops a stale set of groups, if it is the remembered one.
func (t *Topic) Forget(stale *Groups) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups == stale {
		t.groups = nil
	}
}

// WithExisting calls run with the set of groups, and again with the new set after ErrStale. It
// returns ErrNotFound if there is no such topic, and does not make one.
func (t *Topic) WithExisting(ctx context.Context, run func(*Groups) error) error {
	return t.with(ctx, t.Existing, run)
}

func (t *Topic) with(ctx context.Context, read func(context.Context) (*Groups, error), run func(*Groups) error) error {
	for {
		groups, err := read(ctx)
		if err != nil {
			return err
		}
		err = run(groups)
		if err != ErrStale {
			return err
		}
		t.Forget(groups)
	}
}
