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
	Waiting   int
	Messages  []Passed
}

// Passed is a message that became due of late, or becomes due soon.
type Passed struct {
	Stored
	Entry string // "id:due", unique in a topic
	Due   time.Time
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
		names := groups.Names[:min(len(groups.Names), groupsTogether)]
		from := ""
		if !since.IsZero() {
			from = strconv.FormatInt(since.UnixMilli(), 10)
		}
		d := t.Draft(&queue.PassingScript, queue.Target{Groups: names}, "version", groups.Version, "since", from, "ahead", ahead,
			"limit", passingEntries/max(len(names), 1), "bytes", passingBytes)
		for _, entry := range has {
			d.Each("body", "known", entry)
		}
		call := d.Call()
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
	read, err := whole(queue.PassingScript.Read(reply))
	if err != nil {
		return seen, err
	}
	seen = Passing{Now: queue.Instant(read.Text("now")), Published: count(read.Part("published")), Replaced: count(read.Part("replaced")), Waiting: read.Number("waiting")}
	if seen.Now.IsZero() {
		return Passing{}, fmt.Errorf("passing: the server says that it is %.64q", read.Text("now"))
	}
	for _, part := range read.Each() {
		m := Passed{Entry: part.Text("entry"), Stored: Stored{Options: queue.ParseOptions(part.Text("options"))}}
		id, due, ok := strings.Cut(m.Entry, ":")
		if m.ID, m.Due = id, queue.Instant(due); !ok || m.Due.IsZero() {
			return Passing{}, fmt.Errorf("passing: unexpected entry %.64q", m.Entry)
		}
		if body, there := part.Part("body").(string); there {
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
