package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// History is for how long, and of how many messages, a group keeps a line of each that ended. The
// zero value keeps none.
type History struct {
	For time.Duration
	Max int
}

// Bounds of a history.
const (
	DefaultHistory = 10_000
	MostHistory    = 1_000_000
	LongestHistory = 366 * 24 * time.Hour
)

// CheckFor returns what is wrong with the time of a history, 0 for none.
func (h History) CheckFor() error {
	switch {
	case h.For == 0 && h.Max != 0:
		return fmt.Errorf("is missing, but there is a number of messages: set for how long they are kept")
	case h.For == 0 || h.For >= time.Second && h.For <= LongestHistory:
		return nil
	}
	return fmt.Errorf("is %v, must be from 1s to %v, or 0 for no history", h.For, LongestHistory)
}

// CheckMax returns what is wrong with the number of messages of a history, 0 for the default.
func (h History) CheckMax() error {
	if h.Max < 0 || h.Max > MostHistory {
		return fmt.Errorf("is %d, must be from 1 to %d, or 0 for the default of %d", h.Max, MostHistory, DefaultHistory)
	}
	return nil
}

// WithDefaults returns the history with the default number if it has none.
func (h History) WithDefaults() History {
	if h.For > 0 && h.Max == 0 {
		h.Max = DefaultHistory
	}
	return h
}

// encode returns the history as the snippet group_options reads it.
func (h History) encode() string { return millis(h.For) + ":" + strconv.Itoa(h.Max) }

// parseHistory reads the result of encode. Any other text is no history.
func parseHistory(text string) History {
	before, after, _ := strings.Cut(text, ":")
	ms, err := strconv.ParseInt(before, 10, 64)
	most, err2 := strconv.Atoi(after)
	if err != nil || err2 != nil || ms <= 0 || most <= 0 {
		return History{}
	}
	return History{For: time.Duration(min(ms, math.MaxInt64/1_000_000)) * time.Millisecond, Max: most}
}

// KeptHistory returns the history that applies.
func (o GroupOptions) KeptHistory() History {
	if o.SetHistory != nil {
		return *o.SetHistory
	}
	return o.History
}

// HistoryCall returns a call that sets the history of a group whatever its subscribers ask for.
// With nil they decide again.
func (t *Topic) HistoryCall(group string, history *History) *Call {
	text := ""
	if history != nil {
		text = history.encode()
	}
	return t.assignCall(group, "set_history", text)
}

// settler is how this process is named in a history: its host and its process ID.
var settler = sync.OnceValue(func() string {
	w := thisProcess()
	return word(w.Host) + " " + strconv.Itoa(w.PID)
})

// uuidsOf returns the UUIDs of messages as the script ack reads them, "" without a history.
func (g *Group) uuidsOf(messages []*Leased) string {
	if g.history == "" {
		return ""
	}
	var text strings.Builder
	for _, m := range messages {
		text.WriteString(strconv.Itoa(len(m.UUID)))
		text.WriteByte(' ')
		text.WriteString(m.UUID)
	}
	return text.String()
}

// Origin is what a record tells of earlier deliveries. Zero times are not known, or none.
type Origin struct {
	Due         time.Time // at first
	First, Last time.Time // when deliveries began
}

// readOrigin reads "due:first:last". Any other text is no origin.
func readOrigin(text string) Origin {
	part := strings.Split(text, ":")
	if len(part) != 3 {
		return Origin{}
	}
	return Origin{instantOr0(part[0]), instantOr0(part[1]), instantOr0(part[2])}
}

// instantOr0 is Instant, but "0" and "" are the zero time.
func instantOr0(text string) time.Time {
	if at := Instant(text); at.UnixMilli() > 0 {
		return at
	}
	return time.Time{}
}

// Ended is a line of a history: a message that ended. Zero times are not known, or none.
type Ended struct {
	Entry   string // orders the lines of one history by time
	Group   string // "": it ended before any group had it
	How     string
	At      time.Time
	ID      string
	UUID    string // "": not known
	DelayID string
	Origin
	Deliveries int    // that counted, with the last one
	Host       string // of the process that settled it; "": none did
	PID        int
	By         string // the ID of the message that replaced it
}

// ReadEnded reads the fields of a line.
func ReadEnded(entry, group string, fields map[string]any) Ended {
	text := func(name string) string { return Text(fields[name]) }
	e := Ended{
		Entry: entry, Group: group, How: text("how"), At: instantOr0(text("at")), ID: text("id"), UUID: text("uuid"),
		DelayID: DecodeName(text("name")),
		Origin:  Origin{instantOr0(text("due")), instantOr0(text("first")), instantOr0(text("last"))},
	}
	e.Deliveries, _ = strconv.Atoi(text("count"))
	host, pid, settled := strings.Cut(text("by"), " ")
	if settled {
		e.Host = unword(host)
		e.PID, _ = strconv.Atoi(pid)
	} else {
		e.By = host
	}
	return e
}

// EntryAt returns an entry that is before all lines of an instant.
func EntryAt(at time.Time) string { return strconv.FormatInt(max(at.UnixMilli(), 0), 10) }

// EndedBefore returns up to count lines of a group before an entry, newest first, none before
// after; "" is no such bound. Group "" is that of messages that ended before a group had them.
func (t *Topic) EndedBefore(ctx context.Context, group, before, after string, count int) (lines []Ended, err error) {
	key := t.keys.History(group)
	if group == "" {
		key = t.keys.Ended()
	}
	start, end := "+", "-"
	if before != "" {
		start = "(" + before
	}
	if after != "" {
		end = after
	}
	entries, err := servers.AskKey(ctx, t.client, key, func(ctx context.Context, c redis.UniversalClient) ([]redis.XMessage, error) {
		return c.XRevRangeN(ctx, key, start, end, int64(count)).Result()
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, refusal.To("read a history", "xrevrange", err, refusal.Keys(t.prefix))
	}
	for _, e := range entries {
		lines = append(lines, ReadEnded(e.ID, group, e.Values))
	}
	return lines, nil
}
