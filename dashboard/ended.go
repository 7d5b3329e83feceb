package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// endedPage is a page of the messages of a topic that ended.
type endedPage struct {
	Topic string
	Kept  []admin.GroupStats // groups that keep a history
	Name  string             // the ID, UUID or delay ID that was looked for
	Ended []endedRow
	Next  string // address of the next page
	First bool
}

// endedRow is a message that ended.
type endedRow struct {
	admin.Ended
	By string
}

func (d *Dashboard) ended(c *call) (*view, error) {
	topic, name, cursor := c.q("t"), strings.TrimSpace(c.q("name")), c.q("cursor")
	stats, err := d.read(c.ctx, topic)
	if err != nil {
		return nil, err
	}
	p := &endedPage{Topic: topic, Name: name, First: cursor == ""}
	for _, g := range stats.Groups {
		if g.History.History != (admin.History{}) {
			p.Kept = append(p.Kept, g)
		}
	}
	page, err := d.readEnded(c.ctx, topic, name, cursor)
	if err != nil {
		return nil, err
	}
	for _, e := range page.Ended {
		p.Ended = append(p.Ended, endedRow{e, endedBy(e)})
	}
	if page.Next != "" {
		p.Next = d.address("/ended", "t", topic, "name", name, "cursor", page.Next)
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {topic, d.address("/topic", "t", topic)}}
	return &view{Title: "Ended messages", Crumbs: crumbs, Now: d.sweep.now(), Live: p.First, Data: p}, nil
}

// readEnded returns messages that ended, of any name if name is "".
func (d *Dashboard) readEnded(ctx context.Context, topic, name, cursor string) (admin.HistoryPage, error) {
	return cached(ctx, &d.reads, fmt.Sprintf("ended:%q:%q:%s", name, cursor, topic), func(ctx context.Context) (admin.HistoryPage, error) {
		return d.admin.History(ctx, topic, admin.HistoryFilter{Name: name, Limit: 50, Cursor: cursor})
	})
}

// endedBy names who ended a message.
func endedBy(e admin.Ended) string {
	if e.Host == "" {
		return ""
	}
	return fmt.Sprintf("%s, process %d", e.Host, e.PID)
}

// endedMessage returns the page of a message that is not there any more, or nil if no history has
// it among its newest lines.
func (d *Dashboard) endedMessage(c *call, topic, name string) (*view, error) {
	page, err := d.readEnded(c.ctx, topic, name, "")
	for more := 0; more < 4 && err == nil && len(page.Ended) == 0 && page.Next != ""; more++ {
		page, err = d.readEnded(c.ctx, topic, name, page.Next)
	}
	if err != nil || len(page.Ended) == 0 {
		return nil, err
	}
	last := page.Ended[0]
	p := &messagePage{Topic: topic, Gone: true, Published: published(last.ID),
		Message: admin.Message{ID: last.ID, UUID: last.UUID, DelayID: last.DelayID, Topic: last.Topic}}
	if !p.Published.IsZero() {
		p.Events = append(p.Events, event{At: p.Published, Text: "Published"})
	}
	for i := len(page.Ended) - 1; i >= 0; i-- {
		e := page.Ended[i]
		if e.ID != last.ID { // an earlier message with the delay ID
			continue
		}
		if !e.FirstDelivery.IsZero() {
			p.Events = append(p.Events, event{At: e.FirstDelivery, Text: "First delivery", Group: e.Group, Due: e.DueAt})
		}
		if e.LastDelivery.After(e.FirstDelivery) {
			p.Events = append(p.Events, event{At: e.LastDelivery, Text: "Last delivery", Group: e.Group})
		}
		ended := event{At: e.At, Text: strings.ToUpper(e.How[:1]) + e.How[1:], Group: e.Group, By: endedBy(e)}
		switch {
		case e.Deliveries == 1:
			ended.More = append(ended.More, "after 1 delivery")
		case e.Deliveries > 1:
			ended.More = append(ended.More, fmt.Sprintf("after %d deliveries", e.Deliveries))
		}
		if took := e.Took(); took > 0 {
			ended.More = append(ended.More, "the last one took "+duration(took))
		}
		if e.ReplacedBy != "" {
			ended.More = append(ended.More, "by message "+e.ReplacedBy)
		}
		if e.FirstDelivery.IsZero() {
			ended.Due = e.DueAt
		}
		p.Events = append(p.Events, ended)
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {topic, d.address("/topic", "t", topic)}, {"Ended messages", d.address("/ended", "t", topic)}}
	return &view{Title: "Message " + cmp.Or(last.ID, name), Crumbs: crumbs, Now: d.sweep.now(), Data: p}, nil
}
