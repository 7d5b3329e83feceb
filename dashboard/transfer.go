package dashboard

import (
	"context"
	"errors"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// transferring moves messages that wait, retry or are dead to another topic, as they are.
var transferring = work{looks: lookAtTransfer, does: doTransfer, Operation: admin.Operation{Name: "move-messages", Verb: "move", Unit: "message", Of: admin.OfTopic, Waits: true, Partitions: true,
	Effect: "Move messages that wait, retry or are dead to another topic. They keep their IDs, due times, delay IDs, expiry, deliveries and reasons. " +
		"Those that are ready or in hand stay. What comes meanwhile moves, too. It may be stopped, and begun again."}}

func (t target) moving() admin.Moving {
	m := admin.Moving{To: t.To, Create: t.Create, Filter: t.Asked.filter}
	if t.waits {
		m.States = []admin.State{t.Asked.State}
	}
	return m
}

func lookAtTransfer(ctx context.Context, d *Dashboard, t target) (prospect, error) {
	if t.To == "" {
		return prospect{}, bad("Say to which topic they are moved. Nothing was changed.")
	}
	m := t.moving()
	m.DryRun = true
	would, err := d.admin.Move(ctx, t.Topic, m)
	if errors.Is(err, admin.ErrNotFound) && !t.Create {
		return prospect{}, bad(sentence(err) + " Choose that the page makes what is missing.")
	}
	if err != nil {
		return prospect{}, err
	}
	p := prospect{Count: would.Messages, Said: would.Explain()}
	if would.NewTopic {
		p.Said = append(p.Said, fmt.Sprintf("There is no topic %q yet. It is made.", t.To))
	}
	if len(would.Created) > 0 {
		p.Said = append(p.Said, fmt.Sprintf("It gets %s that it lacks: %s.", texts.Many(len(would.Created), "group"), texts.Names(would.Created)))
	}
	return p, nil
}

func doTransfer(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error) {
	m := t.moving()
	m.Progress = tell
	moved, err := d.admin.Move(ctx, t.Topic, m)
	return result{done: moved.Messages, said: moved.Explain()}, err
}
