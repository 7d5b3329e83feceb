package operate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// The states of a message in a group.
const (
	Waiting  = "waiting"  // waits for its due time; for all groups
	Ready    = "ready"    // waits for a subscription
	InHand   = "in_hand"  // leased to a subscription
	Retrying = "retrying" // waits for its next delivery
	Dead     = "dead"
)

// Listed is a message in a page, and its place in the state of the page.
type Listed struct {
	Stored
	Place
	Next string // cursor of a page that begins behind it

	// Own, Text and Free are its options, its record in the group, and when its delay ID is free,
	// as Redis has them. Free is only there from ListWhole, and "" if it has none.
	Own, Text, Free string
}

// Page is some messages of one state, in order of time and ID.
type Page struct {
	Messages []Listed
	Next     string // cursor of the next page; "": this is the last
	Stream   bool   // the topic has a stream; only from ListWhole
}

// List returns the messages of a state from a cursor on, "" for the first. A page has at most limit
// messages, at most a thousand, and about bytes of bodies; no bodies if bytes is zero. It returns
// queue.ErrNotFound if there is no such topic, or no such group; waiting messages are in no group.
func (t *Topic) List(ctx context.Context, group, state, cursor string, limit, bytes int) (Page, error) {
	return t.list(ctx, group, state, cursor, limit, bytes, false)
}

// ListWhole is List with Listed.Free and Page.Stream.
func (t *Topic) ListWhole(ctx context.Context, group, state, cursor string, limit, bytes int) (Page, error) {
	page, err := t.list(ctx, group, state, cursor, limit, bytes, true)
	if err != nil {
		return page, err
	}
	groups, err := t.Existing(ctx)
	page.Stream = err == nil && groups.Stream
	return page, err
}

func (t *Topic) list(ctx context.Context, group, state, cursor string, limit, bytes int, frees bool) (Page, error) {
	k := t.Keys()
	kind, records, key := "zset", k.Deliveries(group), ""
	switch state {
	case Waiting:
		key, records = k.Pending(), k.Options()
	case Ready:
		kind, key = "list", k.Ready(group)
	case InHand:
		key = k.Unack(group)
	case Retrying:
		key = k.Retry(group)
	case Dead:
		key = k.Dead(group)
	default:
		return Page{}, fmt.Errorf("%w: there is no state %q; want %q, %q, %q, %q or %q", ErrInvalid, state, Waiting, Ready, InHand, Retrying, Dead)
	}
	score, id, err := parseCursor(kind, cursor)
	if err != nil {
		return Page{}, err
	}
	if state == Waiting {
		group = ""
	}
	if err := t.Require(ctx, group); err != nil {
		return Page{}, err
	}
	limit = min(max(limit, 1), 1000)
	size := ""
	if bytes > 0 {
		size = strconv.Itoa(bytes)
	}
	reply, err := run(ctx, t, (*redis.Cmd).Slice, t.NewCall(&queue.PageScript, queue.Target{Group: group}, "state", key, "records", records,
		"kind", kind, "score", score, "id", id, "limit", limit, "leased", state == InHand, "bytes", size, "frees", frees))
	if err != nil {
		return Page{}, err
	}
	return readPage(reply, group, state, kind, score)
}

// Require returns queue.ErrNotFound if there is no such topic, or no such group; "" is no group.
// The handle is new, or has read the groups in the same operation.
func (t *Topic) Require(ctx context.Context, group string) error {
	groups, err := t.Existing(ctx)
	if err == nil && group != "" && !slices.Contains(groups.Names, group) {
		err = fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
	}
	return err
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

// Upcoming counts the messages that fall due in each of n spans of time, a thousand spans at most.
// It counts waiting messages, and the retries of a group, if there is such a group. The first span
// begins at from, or now if from is zero. It returns what the script replied, or queue.ErrNotFound
// if there is no such topic.
func (t *Topic) Upcoming(ctx context.Context, group string, from time.Time, width time.Duration, n int) (queue.Reply, error) {
	if err := t.Require(ctx, ""); err != nil {
		return queue.Reply{}, err
	}
	begin := ""
	if !from.IsZero() {
		begin = strconv.FormatInt(from.UnixMilli(), 10)
	}
	reply, err := run(ctx, t, (*redis.Cmd).Slice, t.NewCall(&queue.UpcomingScript, queue.Target{Group: group}, "from", begin, "width", width, "spans", n))
	if err != nil {
		return queue.Reply{}, err
	}
	return readUpcoming(reply, n)
}

// Bodies returns the bodies of messages, nil for one that has none.
func (t *Topic) Bodies(ctx context.Context, ids []string) ([][]byte, error) {
	found, err := servers.AskKey(ctx, t.Client(), t.Key(), func(ctx context.Context, c redis.UniversalClient) ([]any, error) {
		return c.HMGet(ctx, t.Keys().Messages(), ids...).Result()
	})
	if err != nil || len(found) != len(ids) {
		return nil, refusal.Of(err)
	}
	bodies := make([][]byte, len(found))
	for i, part := range found {
		if body, there := part.(string); there {
			bodies[i] = []byte(body)
		}
	}
	return bodies, nil
}
