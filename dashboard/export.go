package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

const (
	mostExported = 100_000 // dead letters of one export; the tool has no limit
	exportedAt   = 100     // that are in memory at a time
)

var (
	errNoContents = &refusal{http.StatusForbidden, "You may not see metadata and payloads, so you may not export them."}
	errHidden     = errors.New("it has a hidden value")
)

// export sends dead letters as "redisdelay dead export" writes them, a line each. It reads all of
// them twice. The first time it looks whether one has a value that the page hides: then it refuses,
// because such a letter could not come back as it was.
func (d *Dashboard) export(w http.ResponseWriter, c *call) {
	topic, group := c.q("t"), c.q("g")
	if !c.user.Contents {
		d.fail(w, c, errNoContents)
		return
	}
	if d.streams.take(c.user.Name) != granted {
		d.fail(w, c, &refusal{http.StatusTooManyRequests, "You have too many pages open."})
		return
	}
	defer d.streams.give(c.user.Name)
	all, hidden := 0, 0
	err := d.letters(c, topic, group, func(m admin.Message) error {
		if all++; all > mostExported {
			return &refusal{http.StatusRequestEntityTooLarge, "The page exports at most " + texts.Many(mostExported, "dead letter") +
				". Choose a reason, or use the tool: redisdelay dead export."}
		}
		if m.Err != nil {
			return &refusal{http.StatusConflict, "A dead letter cannot be read, so none is exported: " + m.Err.Error() + "."}
		}
		if d.hides(m) {
			hidden++
		}
		return nil
	})
	switch {
	case err != nil:
	case hidden > 0:
		err = &refusal{http.StatusForbidden, fmt.Sprintf("%s of %s have values that are hidden on this page, so nothing is exported. Choose another reason, or use the tool: redisdelay dead export.",
			texts.Number(hidden), texts.Many(all, "dead letter"))}
	case all == 0:
		err = &refusal{http.StatusNotFound, "There is no such dead letter."}
	}
	if err != nil {
		d.fail(w, c, err)
		return
	}
	d.config.Logger.Info("Dead letters are exported", "by", c.user.Name, "topic", topic, "group", group, "letters", all)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="dead-letters.ndjson"`)
	deadlines := http.NewResponseController(w)
	defer func() { _ = deadlines.SetWriteDeadline(time.Time{}) }() // the connection may serve other handlers next
	err = d.letters(c, topic, group, func(m admin.Message) error {
		if m.Err != nil || d.hides(m) { // it died meanwhile
			return errHidden
		}
		line, err := m.Letter(topic, group).MarshalJSON()
		if err == nil {
			_ = deadlines.SetWriteDeadline(time.Now().Add(d.limits.write))
			_, err = w.Write(append(line, '\n'))
		}
		return err
	})
	if err != nil {
		d.config.Logger.Warn("An export of dead letters is not complete", "by", c.user.Name, "topic", topic, "error", err)
		panic(http.ErrAbortHandler) // the browser says that the file is not complete
	}
}

// letters calls do with the dead letters that the page of dead letters is about, some at a time.
func (d *Dashboard) letters(c *call, topic, group string, do func(admin.Message) error) error {
	q := admin.Query{State: admin.Dead, Group: group, Filter: admin.Filter{FoldedReason: c.q("reason")}, Limit: exportedAt}
	for {
		reading, end := context.WithTimeout(c.ctx, workFor)
		page, err := d.admin.List(reading, topic, q)
		end()
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			if err := do(m); err != nil {
				return err
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return d.running.Err()
		}
	}
}

// hides tells whether the page hides a value of a message, in its metadata or its payload.
func (d *Dashboard) hides(m admin.Message) bool {
	hides := func(text []byte) bool {
		r := d.names.redact(text, false, 8*len(text)+shown) // so much that it reads to the end
		return r.hidden || r.whole != ""
	}
	for key, value := range m.Metadata {
		if d.names.hide(key) || hides([]byte(value)) {
			return true
		}
	}
	return hides(m.Payload)
}
