package queue

import (
	"context"
	"slices"
)

// EndLeases ends leases of a group as if they had run out, and returns how many. The messages come
// back in the order of leases. A message that has another lease by now, or none, is left alone.
// Others than the subscription at the address are woken for them. The caller has the scheduler
// look.
//
// A step ends a thousand leases. In a group with SingleActive, all leases end with the first. The
// count is too low if the client repeats a call whose answer was lost.
func (t *Topic) EndLeases(ctx context.Context, group, address string, leases []*Leased) (ended int, err error) {
	for part := range slices.Chunk(leases, budget) {
		err := t.WithExisting(ctx, func(groups *Groups) error {
			if !slices.Contains(groups.Names, group) {
				return nil // it was removed, with its messages
			}
			d := t.expireDraft(groups, []string{group}, address)
			for _, m := range part {
				d.Each("message", "id", m.ID, "token", m.Token)
			}
			call := d.Call()
			if err := Do(ctx, t.client, call); err != nil {
				return err
			}
			reply, err := call.Read()
			if err != nil {
				return err
			}
			if reply.Refusal != "" {
				return ErrStale
			}
			ended += reply.Number("taken_back")
			return nil
		})
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// Nudge has the topic's scheduler look at once.
func (t *Topic) Nudge(ctx context.Context) error {
	return Do(ctx, t.client, t.NewCall(&nudgeScript, Target{}, "event", ""))
}
