package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// walk goes through a list of ready from the right to the left, and judges each entry. Places
// counted from the right only grow, by what comes in behind. So walk passes over no entry that was
// in the list, and may see some twice.
func (a *audit) walk(ctx context.Context, group int) error {
	one := a.part(group, group+1)
	for from, size := 0, page(one); ; from += size {
		found, _, now, err := a.topic.inspect(ctx, one, inspection{source: 1, from: -from - size, to: -from - 1})
		if err != nil {
			return err
		}
		var again []repetition
		for i := len(found) - 1; i >= 0; i-- {
			f, at := &found[i], from+len(found)-1-i
			a.judgeReady(f, one.Names[0], now)
			if before, is := a.tallies.ready(f.id, group, at); is {
				again = append(again, repetition{f.id, before, at})
			}
		}
		if err := a.repeated(ctx, group, again); err != nil {
			return err
		}
		a.tell(len(found))
		if len(found) < size {
			return nil
		}
	}
}

// looks is how often a suspect is looked for, because it may move meanwhile.
const looks = 3

// confirm looks again at the messages whose tally is wrong, or which a group seems not to have
// although it has a record of them. It reports those that are in fewer or more groups than need
// them. Most only moved.
func (a *audit) confirm(ctx context.Context) error {
	suspects := a.tallies.suspects()
	known := map[string]bool{}
	for _, id := range suspects {
		known[id] = true
	}
	for _, id := range a.loose {
		if !known[id] {
			known[id] = true
			suspects = append(suspects, id)
		}
	}
	for range looks {
		if len(suspects) == 0 {
			return nil
		}
		var err error
		if suspects, err = a.look(ctx, suspects); err != nil {
			return err
		}
	}
	a.Unconfirmed += len(suspects)
	return nil
}

// search is a look for suspects in all groups, in steps that each read some groups. All that it
// finds about a message is true at one time, unless refs or the body of the message changed
// meanwhile. For a group that is done with a message lowers refs or removes the body, in the same
// step.
type search struct {
	marks []mark // of all groups, from before the lists were looked through
	found map[messageID]*suspect
}

type suspect struct {
	refs  int     // before the marks were taken; -1: none
	ready []int32 // groups in whose ready it was seen since, in order
}

// look judges the suspects, and returns those that it cannot judge.
func (a *audit) look(ctx context.Context, suspects []string) (unsure []string, err error) {
	s := search{found: map[messageID]*suspect{}}
	var left []string
	err = a.each(ctx, a.part(0, 0), suspects, func(f *facts, _ time.Time) {
		if f.there && f.due == "" { // else it moved on meanwhile
			s.found[idOf(f.id)] = &suspect{refs: f.refs}
			left = append(left, f.id)
		}
	})
	if err != nil || len(left) == 0 {
		return nil, err
	}
	for _, part := range a.parts() {
		_, marks, _, err := a.topic.inspect(ctx, part, inspection{})
		if err != nil {
			return nil, err
		}
		s.marks = append(s.marks, marks...)
	}
	for g := range a.all {
		if s.marks[g].length == 0 {
			continue // whatever comes in is found by the marks
		}
		if err := a.glance(ctx, g, &s); err != nil {
			return nil, err
		}
	}
	for some := range slices.Chunk(left, page(a.parts()[0])) {
		all, err := a.gather(ctx, some, &s)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if !a.convict(&all[i], &s) {
				unsure = append(unsure, all[i].id)
			}
		}
	}
	return unsure, nil
}

// glance notes which suspects are in a list of ready, and judges nothing.
func (a *audit) glance(ctx context.Context, group int, s *search) error {
	const size = 1000
	key := a.topic.Keys().Ready(a.all[group])
	for from := 0; ; from += size {
		entries, err := servers.AskKey(ctx, a.topic.Client(), key, func(ctx context.Context, c redis.UniversalClient) ([]string, error) {
			return c.LRange(ctx, key, int64(-from-size), int64(-from-1)).Result()
		})
		if err != nil {
			return err
		}
		for _, entry := range entries {
			m := s.found[idOf(entry[:min(queue.IDLength, len(entry))])]
			if m != nil && (len(m.ready) == 0 || m.ready[len(m.ready)-1] != int32(group)) {
				m.ready = append(m.ready, int32(group))
			}
		}
		if len(entries) < size {
			return nil
		}
	}
}

// gathered is what all groups say about a message. If it moved on or changed meanwhile, it says
// nothing.
type gathered struct {
	facts
	sure    []bool // of each group: all that came into ready since the marks was found
	moved   bool   // it has no body any more, or is waiting
	changed bool   // refs has changed
}

// gather reads all about some suspects, for some groups at a time.
func (a *audit) gather(ctx context.Context, ids []string, s *search) ([]gathered, error) {
	all := make([]gathered, len(ids))
	first := 0
	for _, part := range a.parts() {
		found, after, _, err := a.topic.inspect(ctx, part, inspection{ids: ids, marks: s.marks[first : first+len(part.Names)]})
		if err != nil {
			return nil, err
		}
		first += len(part.Names)
		for i := range found {
			f, g := &found[i], &all[i]
			groups := append(g.groups, f.groups...)
			g.facts = *f
			g.groups = groups
			g.moved = g.moved || !f.there || f.due != ""
			g.changed = g.changed || f.refs != s.found[idOf(f.id)].refs
			for _, m := range after {
				g.sure = append(g.sure, m.sure)
			}
		}
	}
	return all, nil
}

// convict judges one suspect. It returns false if it cannot.
func (a *audit) convict(f *gathered, s *search) bool {
	if f.moved || f.changed {
		return f.moved
	}
	sure, doubtful := true, false // doubtful: of some record it is not known whether it has a state
	var absent, present []string
	have := 0
	var recorded []int // groups that have a record and surely not the message
	ready := s.found[idOf(f.id)].ready
	for g, in := range f.groups {
		name := a.all[g]
		_, seen := slices.BinarySearch(ready, int32(g))
		switch {
		case in.held():
			have++
		case in.recent || seen:
			have++
			present = append(present, name)
		case !f.sure[g]:
			sure, doubtful = false, doubtful || in.record != ""
		default:
			absent = append(absent, name)
			if in.record != "" {
				recorded = append(recorded, g)
			}
		}
	}
	needed := f.needed()
	v := Violation{ID: f.id, marks: s.marks, version: a.groups.Version, absent: absent, present: present}
	switch {
	case have < needed && !sure, have == needed && doubtful:
		return false
	case have == 0:
		v.Fault, v.Detail = FaultLost, "its body is there, and it is in no state of any group"
		a.report(v)
		return true
	case have != needed:
		v.Fault, v.Detail = FaultRefs, fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, have)
		a.report(v)
	}
	for _, g := range recorded {
		v.Fault, v.Group = FaultRecord, a.all[g]
		v.Detail = "it has a record of deliveries and no state"
		a.report(v)
	}
	return true
}
