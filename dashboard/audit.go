package dashboard

import (
	"context"
	"fmt"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

// auditPage is a page of the audit log.
type auditPage struct {
	By, Topic, Since string // the filter, as typed
	Acts             []admin.Act
	Newest, Next     string // addresses of the first and the next page
	First            bool
}

// Filtered returns whether the page leaves out acts.
func (p auditPage) Filtered() bool { return p.By != "" || p.Topic != "" || p.Since != "" }

func (d *Dashboard) audit(c *call) (*view, error) {
	p := &auditPage{By: strings.TrimSpace(c.q("by")), Topic: c.q("t"), Since: strings.TrimSpace(c.q("since"))}
	f := admin.ActFilter{By: p.By, Topic: p.Topic, Cursor: c.q("cursor"), Limit: 50}
	if p.Since != "" {
		var err error
		if f.Since, err = when.Parse(p.Since, d.sweep.now().In(d.zone(c)), when.Past); err != nil {
			return nil, bad(sentence(err))
		}
	}
	key := fmt.Sprintf("audit:%q:%q:%q:%s:%s", f.By, f.Topic, p.Since, c.q("zone"), f.Cursor)
	found, err := cached(c.ctx, &d.reads, key, func(ctx context.Context) (admin.ActPage, error) {
		page, err := d.acts(ctx, f)
		if err != nil || page.Next == "" {
			return page, err
		}
		f.Cursor, f.Limit = page.Next, 1
		rest, err := d.acts(ctx, f) // the page is full, and may be the last
		if len(rest.Acts) == 0 {
			page.Next = ""
		}
		return page, err
	})
	if err != nil {
		return nil, err
	}
	p.First = c.q("cursor") == ""
	for _, act := range found.Acts {
		act.Detail, act.Error = d.seenText(act.Detail, c.user), d.seenText(act.Error, c.user)
		p.Acts = append(p.Acts, act)
	}
	filter := []string{"by", p.By, "t", p.Topic, "since", p.Since, "zone", c.q("zone")}
	p.Newest = d.address("/audit", filter...)
	if found.Next != "" {
		p.Next = d.address("/audit", append(filter, "cursor", found.Next)...)
	}
	return &view{Title: "Audit log", Crumbs: []crumb{{"Topics", d.address("/")}}, Now: d.sweep.now(), Live: p.First && p.Since == "", Data: p}, nil
}

// seenText returns what a user sees of a text of an act, which may name the metadata by which it
// chose: that and what follows only with User.Contents, and not if the key is hidden.
func (d *Dashboard) seenText(text string, user User) string {
	before, chosen, found := strings.Cut(text, "metadata ")
	if !found {
		return text
	}
	for pair := range strings.SplitSeq(chosen, "metadata ") {
		if key, _, _ := strings.Cut(pair, "="); !user.Contents || d.names.hide(key) {
			return before + "metadata that is hidden here"
		}
	}
	return text
}

// acts returns as many acts as the filter's Limit, if there are so many.
func (d *Dashboard) acts(ctx context.Context, f admin.ActFilter) (page admin.ActPage, err error) {
	for { // the log has about 10,000 acts, and a call reads 1,000
		more, err := d.admin.FindActs(ctx, f)
		page.Acts, page.Next = append(page.Acts, more.Acts...), more.Next
		if f.Cursor, f.Limit = more.Next, f.Limit-len(more.Acts); err != nil || f.Cursor == "" || f.Limit <= 0 {
			return page, err
		}
	}
}

// record notes a change in the audit log and in the program's log.
func (d *Dashboard) record(ctx context.Context, act admin.Act, err error) {
	if err != nil {
		act.Error = err.Error()
	}
	d.config.Logger.Info("Change by the dashboard", "by", act.By, "action", act.Action, "topic", act.Topic, "group", act.Group,
		"message", act.MessageID, "detail", act.Detail, "error", act.Error)
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), workFor)
	defer cancel()
	if err := d.admin.Record(noting, act); err != nil {
		d.config.Logger.Error("A change by the dashboard is not in the audit log", "action", act.Action, "topic", act.Topic, "error", err)
	}
	d.reads.forget()
}
