package operate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Passing is what the passing script saw of a topic at one time.
type Passing struct {
	Now       time.Time
	Published int // messages that the topic ever took
	Replaced  int // of those, the ones that others replaced
	Pending   int
	Messages  []Passed
}

// Passed is a message that became due of late, or becomes due soon.
type Passed struct {
	Entry   string // "id:due", unique in a topic
	ID      string
	Due     time.Time
	Options queue.Options
	Body    []byte // nil if the caller has it, or if it is lost
}

const (
	passingEntries = 1000    // of all groups together that one step reads of each kind of key, at most
	passingBytes   = 1 << 20 // of bodies in one step, about
)

// Passing reads the messages that became due from a time on, or become due within ahead. It looks
// where they are: in pending, and in ready, unack and retry of each group. since is zero for now.
// has are the entries whose bodies the caller has. Of a topic with more than a hundred groups it
// looks at a hundred.
func (t *Topic) Passing(ctx context.Context, since time.Time, ahead time.Duration, has []string) (seen Passing, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		k := t.Keys()
		keys := []string{k.Meta(), k.Messages(), k.Options(), k.Pending(), k.Counters()}
		names := groups.Names[:min(len(groups.Names), groupsTogether)]
		for _, g := range names {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g))
		}
		from := ""
		if !since.IsZero() {
			from = strconv.FormatInt(since.UnixMilli(), 10)
		}
		args := []any{groups.Version, from, ahead, passingEntries / max(len(names), 1), passingBytes}
		for _, entry := range has {
			args = append(args, entry)
		}
		call := queue.NewCall(&queue.PassingScript, keys, args...)
		if err := queue.Do(ctx, t.Client(), call); err != nil {
			return err
		}
		reply, err := call.Cmd().Slice()
		if err == nil {
			seen, err = readPassing(reply)
		}
		return err
	})
	return seen, err
}

// readPassing reads the reply of the passing script, with the messages in order of due time and ID.
// It returns queue.ErrStale if the groups have changed.
func readPassing(reply []any) (seen Passing, err error) {
	if len(reply) == 1 && reply[0] == "stale" {
		return seen, queue.ErrStale
	}
	const head, each = 4, 3
	if len(reply) < head || (len(reply)-head)%each != 0 {
		return seen, fmt.Errorf("passing: unexpected reply of %d parts", len(reply))
	}
	err = checkParts("passing", reply, func(i int) func(any) bool {
		switch {
		case i == head-1:
			return isNumber
		case i >= head && (i-head)%each == 1:
			return isTextOrNone
		}
		return isText
	})
	if err != nil {
		return seen, err
	}
	seen = Passing{Now: queue.Instant(queue.Text(reply[0])), Published: count(reply[1]), Replaced: count(reply[2]), Pending: count(reply[3])}
	if seen.Now.IsZero() {
		return Passing{}, fmt.Errorf("passing: the server says that it is %.64q", queue.Text(reply[0]))
	}
	for part := range slices.Chunk(reply[head:], each) {
		m := Passed{Entry: queue.Text(part[0]), Options: queue.ParseOptions(queue.Text(part[2]))}
		id, due, ok := strings.Cut(m.Entry, ":")
		if m.ID, m.Due = id, queue.Instant(due); !ok || m.Due.IsZero() {
			return Passing{}, fmt.Errorf("passing: unexpected entry %.64q", m.Entry)
		}
		if body, there := part[1].(string); there {
			m.Body = []byte(body)
		}
		seen.Messages = append(seen.Messages, m)
	}
	slices.SortFunc(seen.Messages, func(a, b Passed) int {
		if c := a.Due.Compare(b.Due); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return seen, nil
}
