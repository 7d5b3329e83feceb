package dashboard

import (
	"context"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// auditPage is a page of the audit log.
type auditPage struct {
	Acts  []admin.Act
	Next  string // address of the next page
	First bool
}

func (d *Dashboard) audit(c *call) (*view, error) {
	cursor := c.q("cursor")
	type page struct {
		acts []admin.Act
		next string
	}
	found, err := cached(c.ctx, &d.reads, "audit:"+cursor, func(ctx context.Context) (page, error) {
		acts, next, err := d.admin.Acts(ctx, cursor, 50)
		return page{acts, next}, err
	})
	if err != nil {
		return nil, err
	}
	p := &auditPage{Acts: found.acts, First: cursor == ""}
	if found.next != "" {
		p.Next = d.address("/audit", "cursor", found.next)
	}
	return &view{Title: "Audit log", Crumbs: []crumb{{"Topics", d.address("/")}}, Now: d.sweep.now(), Live: p.First, Data: p}, nil
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
