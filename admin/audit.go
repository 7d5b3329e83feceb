package admin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Act is something that somebody did to topics: an entry of the audit log.
type Act struct {
	// At is when it was recorded, by the server's clock. Record sets it.
	At time.Time `json:"at"`

	// By is who did it, and Action what, such as "pause". Both are required.
	By     string `json:"by"`
	Action string `json:"action"`

	// Topic, Group, MessageID and Schedule are what it was done to, if it was done to one. Schedule
	// is the name of a recurring schedule.
	Topic     string `json:"topic,omitempty"`
	Group     string `json:"group,omitempty"`
	MessageID string `json:"message_id,omitempty"`
	Schedule  string `json:"schedule,omitempty"`

	// Detail is more about it, and Error why it failed, "" if it did not.
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"`
}

// actText is the maximum length of a text of an Act, in bytes.
const actText = 1024

// Record adds an act to the audit log in Redis, which keeps about the last 10,000. Texts are cut at
// 1,024 bytes, and bytes that are not UTF-8 are replaced. No operation of this package calls it:
// the program decides what to record. If an answer is lost, the act may be recorded twice. Errors
// wrap ErrInvalidArgument without By or Action.
func (a *Admin) Record(ctx context.Context, act Act) error {
	if act.By == "" || act.Action == "" {
		return fmt.Errorf("record: %w: an Act needs By and Action", ErrInvalidArgument)
	}
	fields := map[string]string{}
	for name, text := range act.texts() {
		if *text != "" {
			fields[name] = strings.ToValidUTF8(texts.Clip(*text, actText), "\ufffd") // never the name of another topic
		}
	}
	if err := queue.Audit(ctx, a.client, a.config.KeyPrefix, fields); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// texts returns the texts of an act, by the names of their fields in Redis.
func (a *Act) texts() map[string]*string {
	return map[string]*string{"by": &a.By, "action": &a.Action, "topic": &a.Topic, "group": &a.Group, "message": &a.MessageID,
		"schedule": &a.Schedule, "detail": &a.Detail, "error": &a.Error}
}

// isActCursor returns whether a text is the ID of an entry, two numbers of 64 bits.
func isActCursor(text string) bool {
	milliseconds, number, ok := strings.Cut(text, "-")
	_, first := strconv.ParseUint(milliseconds, 10, 64)
	_, second := strconv.ParseUint(number, 10, 64)
	return ok && first == nil && second == nil
}

// ActFilter chooses acts of the audit log. The zero value chooses all.
type ActFilter struct {
	By    string // only what this person did
	Topic string // only what was done to this topic

	// Since and Until are times by the server's clock: only acts at or after Since, and before
	// Until. Nothing older than Since is read.
	Since, Until time.Time

	// Limit is how many acts a page has at most. Default 100, at most 1,000.
	Limit int

	// Cursor is where the page begins: "" for the newest, else ActPage.Next.
	Cursor string
}

// ActPage is a page of the audit log.
type ActPage struct {
	Acts   []Act  // the newest first
	Looked int    // how many acts were read
	Next   string // Cursor of the next page; "" if there is none
}

// FindActs returns acts of the audit log, the newest first. A call reads at most 1,000, so a page
// may have few or none and a Next all the same. Errors wrap ErrInvalidArgument for another cursor.
func (a *Admin) FindActs(ctx context.Context, f ActFilter) (page ActPage, err error) {
	cursor := f.Cursor
	switch {
	case cursor != "" && !isActCursor(cursor):
		return page, fmt.Errorf("acts: %w: %q is not a cursor of Acts", ErrInvalidArgument, cursor)
	case cursor == "" && !f.Until.IsZero():
		cursor = fmt.Sprintf("%d-0", max(f.Until.UnixMilli(), 1))
	}
	limit := min(cmp.Or(max(f.Limit, 0), 100), 1000)
	reads := limit
	if f.By != "" || f.Topic != "" {
		reads = 1000
	}
	found, err := queue.AuditBefore(ctx, a.client, a.config.KeyPrefix, cursor, reads)
	if err != nil {
		return page, fmt.Errorf("acts: %w", err)
	}
	topic := strings.ToValidUTF8(f.Topic, "\ufffd") // as Record writes it
	for _, entry := range found {
		if !f.Since.IsZero() && entry.At.Before(f.Since) {
			return page, nil
		}
		page.Looked++
		act := Act{At: entry.At}
		for name, text := range act.texts() {
			*text = entry.Fields[name]
		}
		if f.By != "" && act.By != f.By || f.Topic != "" && act.Topic != topic {
			continue
		}
		if page.Acts = append(page.Acts, act); len(page.Acts) == limit {
			page.Next = entry.ID
			return page, nil
		}
	}
	if len(found) == reads {
		page.Next = found[reads-1].ID
	}
	return page, nil
}

// Acts returns about limit acts of the audit log (default 100, at most 1,000), the newest first,
// and the cursor of the next page, as Topics does. It is FindActs without a filter. Errors wrap
// ErrInvalidArgument for another cursor.
func (a *Admin) Acts(ctx context.Context, cursor string, limit int) (acts []Act, next string, err error) {
	page, err := a.FindActs(ctx, ActFilter{Cursor: cursor, Limit: limit})
	return page.Acts, page.Next, err
}
