package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// workerPage is a process that subscribes to a group of a topic.
type workerPage struct {
	Topic, Group, Name string
	admin.Worker       // the first of its subscriptions; one in each partition
	Held               int
	Since              time.Time // it has the one that it has longest
}

// subscriptionsOf returns the subscriptions of a process in a group of a topic.
func (d *Dashboard) subscriptionsOf(ctx context.Context, topic, group, name string) ([]admin.Worker, error) {
	all, err := d.admin.Workers(ctx, topic)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(w admin.Worker) bool { return w.Name() != name || w.Group != group })
	if len(all) == 0 {
		return nil, fmt.Errorf("worker %q of group %q of topic %q: %w", texts.Clip(name, 80), texts.Clip(group, 80), topic, admin.ErrNotFound)
	}
	return all, nil
}

func (d *Dashboard) worker(c *call) (*view, error) {
	p := &workerPage{Topic: c.q("t"), Group: c.q("g"), Name: c.q("w")}
	all, err := d.subscriptionsOf(c.ctx, p.Topic, p.Group, p.Name)
	if err != nil {
		return nil, err
	}
	p.Worker = all[0]
	for _, w := range all {
		p.Held += w.InHand
		if p.Since.IsZero() || !w.Oldest.IsZero() && w.Oldest.Before(p.Since) {
			p.Since = w.Oldest
		}
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	return &view{Title: "Consumer " + p.Name, Crumbs: crumbs, Now: d.sweep.now(), Live: true, Data: p}, nil
}

// release ends the leases of a process in a group.
func (d *Dashboard) release(c *call) (string, error) {
	topic, group, name := c.q("t"), c.q("g"), c.q("w")
	all, err := d.subscriptionsOf(c.ctx, topic, group, name)
	if err != nil {
		return "", err
	}
	ended := 0
	for _, w := range all {
		if w.InHand == 0 {
			continue // it may get what another has to give back
		}
		n, failed := d.admin.ReleaseWorker(c.ctx, w)
		ended, err = ended+n, errors.Join(err, failed)
	}
	d.record(c.ctx, admin.Act{By: c.user.Name, Action: "release-worker", Topic: topic, Group: group,
		Detail: fmt.Sprintf("done: %s of worker %q", texts.Many(ended, "message"), name)}, err)
	return d.back("/topic", "Released: "+texts.Many(ended, "message")+" of "+texts.Clip(name, 80)+". Other consumers get them.", "t", topic), err
}
