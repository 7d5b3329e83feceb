package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// memory is how long Redis remembers the last numbered call of a publisher or subscription, to
// recognise a repeat. Clients repeat within seconds.
const memory = time.Hour

// Topic is a handle on one topic. Safe for concurrent use.
type Topic struct {
	Name string

	client *servers.Client
	prefix string
	keys   Keys
	stream *StreamOptions // nil: the handle does not publish into a stream

	mu     sync.Mutex
	groups *Groups // as last read; nil: not read yet

	// The keys of the publish script for a set of groups, and how many groups they are of.
	published     *Groups
	publishing    []string
	publishingFor int
}

// Groups is the set of a topic's consumer groups at one time.
type Groups struct {
	Version string
	Names   []string // of the consumer groups
	Window  string   // the takeover window, which scripts treat as a group; "": none
	Stream  bool     // the topic has a stream, and one group for it
	Single  bool     // the topic has or had groups with SingleActive
	Bounded bool     // the topic has or had groups with a limit

	Recorded bool // the topic has or had groups with a history
}

// All returns the names of all that messages are kept for: the groups, and then the window.
func (g *Groups) All() []string {
	if g.Window == "" {
		return g.Names
	}
	return append(slices.Clip(g.Names), g.Window)
}

// DefaultWindow is the length of a takeover window unless the user sets another.
const DefaultWindow = 10 * time.Second

// GroupOptions are the settings of a group that Redis stores.
type GroupOptions struct {
	MaxDeliveries int           // negative: no limit
	Retention     time.Duration // of dead messages; negative: for ever
	MaxDead       int           // dead messages that are kept at most; 0: no limit
	Expiry        time.Duration // the group is removed after this time without use; 0: never
	SingleActive  bool          // one subscription claims, others stand by
	WholeLeases   bool          // what a dead process had waits until its leases end
	Limit         GroupLimit    // that the last subscriber asked for
	Set           *GroupLimit   // that an operator has set, which applies instead; nil: none. Only a new group is registered with it.
	History       History       // that the last subscriber asked for
	SetHistory    *History      // that an operator has set, which applies instead, as Set does

	// Window is for how long groups that come after the topic's first one get what that one got.
	// The first group opens a window that long; a later one takes it over. 0: the group does
	// neither.
	Window time.Duration
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
	if o.WholeLeases {
		text += " whole"
	}
	if o.Limit != (GroupLimit{}) {
		text += " limit:" + o.Limit.encode()
	}
	if o.History != (History{}) {
		text += " history:" + o.History.encode()
	}
	if o.Set != nil {
		text += " set:" + o.Set.encode()
	}
	if o.SetHistory != nil {
		text += " set_history:" + o.SetHistory.encode()
	}
	return text
}

// ParseGroupOptions reads what is stored of the options. The snippet group_options reads the same.
// A part that is no number is no limit.
func ParseGroupOptions(text string) GroupOptions {
	part := append(strings.Fields(text), "", "", "")
	limit := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return -1
		}
		return n
	}
	o := GroupOptions{MaxDeliveries: int(limit(part[0])), Retention: -1, MaxDead: int(max(limit(part[2]), 0)),
		SingleActive: slices.Contains(part[3:], "single"), WholeLeases: slices.Contains(part[3:], "whole")}
	for _, word := range part[3:] {
		switch name, value, _ := strings.Cut(word, ":"); name {
		case "limit":
			o.Limit = parseLimit(value)
		case "set":
			set := parseLimit(value)
			o.Set = &set
		case "history":
			o.History = parseHistory(value)
		case "set_history":
			set := parseHistory(value)
			o.SetHistory = &set
		}
	}
	if ms := limit(part[1]); ms >= 0 {
		o.Retention = time.Duration(min(ms, math.MaxInt64/1_000_000)) * time.Millisecond
	}
	return o
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
func NewTopic(client *servers.Client, prefix, name string) *Topic {
	return &Topic{Name: name, client: client, prefix: prefix, keys: NewKeys(prefix, name)}
}

// Groups returns the set of groups as last read, and reads it the first time. It enters the topic
// in the registry before that, so that a scheduler finds every topic with messages.
func (t *Topic) Groups(ctx context.Context) (*Groups, error) {
	if groups := t.Remembered(); groups != nil {
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
	if groups := t.Remembered(); groups != nil {
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
	return t.NewCall(&openScript, Target{}, "layout", Layout, "fresh", Token())
}

// LookCall returns a call that reads the set of groups, and makes no topic. ReadLook reads its
// reply.
func (t *Topic) LookCall() *Call {
	return t.NewCall(&lookScript, Target{})
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

// Registered tells what a group got when it was made. It is zero for a group that was there.
type Registered struct {
	// Taken is how many messages that the topic's first group got before came from the window.
	Taken int
	// Missed is how many messages the window had when it was full, or ended before the group had
	// all. The group got none of them.
	Missed int
	// Waited is how many messages were due before the topic had a group.
	Waited int
}

// Register is Join for a caller that does not ask what the group got.
func (t *Topic) Register(ctx context.Context, group string, options GroupOptions) error {
	_, err := t.Join(ctx, group, options)
	return err
}

// Join makes sure that the group exists with these options. If the group is being removed, it
// finishes the removal first, so the group is empty. It returns ErrTopicMode if the topic has a
// stream, and ErrGroupMode if the group has the other setting of SingleActive.
//
// A group that is new within the window of the topic's first group gets what that window has. It
// exists when it has all of that, which takes a call for every thousand messages.
func (t *Topic) Join(ctx context.Context, group string, options GroupOptions) (Registered, error) {
	if err := t.Enroll(ctx); err != nil {
		return Registered{}, err
	}
	window := ""
	if groups := t.Remembered(); groups != nil && options.Window > 0 {
		window = groups.Window
	}
	for {
		call := t.registerCall(group, options, window)
		if err := Do(ctx, t.client, call); err != nil {
			return Registered{}, err
		}
		parts, _ := call.cmd.Slice()
		if said, about := Text(at(parts, 0)), Text(at(parts, 1)); len(parts) <= 2 {
			switch {
			case said == "mode":
				return Registered{}, ErrGroupMode
			case said == "window" && about != "":
				window = about
			case said == "removing" && about != "":
				if err := t.FinishRemovals(ctx, []string{about}); err != nil {
					return Registered{}, err
				}
			case said == "more":
			default:
				return Registered{}, fmt.Errorf("register: unexpected reply %v", parts)
			}
			continue
		}
		reply, err := registerScript.Read(parts)
		if err != nil {
			return Registered{}, err
		}
		return t.readRegistered(reply)
	}
}

// OptionsOf returns the options of a group, zero if there is no such group.
func (t *Topic) OptionsOf(ctx context.Context, group string) (GroupOptions, error) {
	text, err := servers.AskMaster(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) (string, error) {
		text, err := c.HGet(ctx, t.keys.Groups(), group).Result()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return text, err
	})
	if err != nil || text == "" {
		return GroupOptions{}, refusal.To("read the options of a group", "hget", err, refusal.Keys(t.prefix))
	}
	return ParseGroupOptions(text), nil
}

// at returns a part of a reply, nil if there is none.
func at(parts []any, i int) any {
	if i < len(parts) {
		return parts[i]
	}
	return nil
}

// registerCall returns a call that registers a group, or copies a part of the window for it.
func (t *Topic) registerCall(group string, options GroupOptions, window string) *Call {
	return t.NewCall(&registerScript, Target{Group: group, Window: window},
		"layout", Layout, "fresh", Token(), "group", group, "options", options.encode(), "expiry", expiry(options.Expiry),
		"length", max(options.Window, 0), "given", window)
}

// readRegistered reads the reply of a call that has registered a group, and remembers the set.
func (t *Topic) readRegistered(reply Reply) (Registered, error) {
	groups, err := groupsOf(reply)
	if err == nil {
		err = t.checkMode(groups)
	}
	if err != nil {
		return Registered{}, err
	}
	t.remember(groups)
	return Registered{Taken: reply.Number("taken"), Missed: reply.Number("missed"), Waited: reply.Number("waited")}, nil
}

// readGroups reads the reply of a call that opens a topic or looks at it.
func readGroups(call *Call) (*Groups, error) {
	parts, err := call.cmd.Slice()
	if err != nil {
		return nil, fmt.Errorf("unexpected reply: %w", err)
	}
	reply, err := lookScript.Read(parts) // others that open a topic answer the same
	if err != nil {
		return nil, fmt.Errorf("unexpected reply %v: %w", parts, err)
	}
	return groupsOf(reply)
}

// groupsOf reads a set of groups from a reply.
func groupsOf(reply Reply) (*Groups, error) {
	layout, each := reply.Text("layout"), reply.Each()
	marks, known := readLayout(layout)
	if !known {
		return nil, fmt.Errorf("%w: it is %q, this program writes %q", ErrLayout, layout, Layout)
	}
	groups := &Groups{Version: reply.Text("version"), Names: make([]string, 0, len(each)), Stream: layout == StreamLayout,
		Single: marks.single, Bounded: marks.bounded, Recorded: marks.recorded}
	for _, group := range each {
		if name := group.Text("name"); IsWindow(name) {
			groups.Window = name
		} else {
			groups.Names = append(groups.Names, name)
		}
	}
	slices.Sort(groups.Names) // the server's order changes
	return groups, nil
}

// Remembered returns the set of groups as last read, or nil.
func (t *Topic) Remembered() *Groups {
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
