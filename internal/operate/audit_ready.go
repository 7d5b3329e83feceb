package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// search is a search through ready for the messages that no index accounts for. It holds all of
// them in memory, about a hundred bytes each, so that one pass through the lists is enough.
type search struct {
	marks []mark
	first map[messageID]place   // first place of each; nowhere if it was not seen
	more  map[messageID][]place // further places, in other groups
}

// messageID is an ID that needs no memory of its own, because there may be millions.
type messageID [queue.IDLength]byte

func idOf(id string) (m messageID) {
	copy(m[:], id)
	return m
}

// place is a position in the ready list of a group, counted from the right end.
type place struct{ group, at int32 }

var nowhere = place{group: -1}

func newSearch() *search {
	return &search{first: map[messageID]place{}, more: map[messageID][]place{}}
}

func (s *search) add(id string) {
	m := idOf(id)
	if _, known := s.first[m]; !known {
		s.first[m] = nowhere
	}
}

// see notes the place of a message, if it is searched for. It returns an earlier place in the same
// group.
func (s *search) see(id string, p place) (before place, again bool) {
	m := idOf(id)
	first, searched := s.first[m]
	switch {
	case !searched:
		return nowhere, false
	case first == nowhere:
		s.first[m] = p
		return nowhere, false
	case first.group == p.group:
		return first, true
	}
	for _, q := range s.more[m] {
		if q.group == p.group {
			return q, true
		}
	}
	s.more[m] = append(s.more[m], p)
	return nowhere, false
}

func (s *search) seenIn(id string, group int) bool {
	m := idOf(id)
	in := func(p place) bool { return p != nowhere && int(p.group) == group }
	return in(s.first[m]) || slices.ContainsFunc(s.more[m], in)
}

// bodies checks every message that has a body, and searches ready for those that no index accounts
// for.
func (a *audit) bodies(ctx context.Context) error {
	s := newSearch()
	err := a.scan(ctx, []index{hash(a.topic.Keys().Messages())}, func(ids []string) error {
		a.Messages += len(ids)
		for part := range slices.Chunk(ids, a.page()) {
			found, marks, now, err := a.topic.inspect(ctx, a.groups, inspection{ids: part})
			if err != nil {
				return err
			}
			if s.marks == nil {
				s.marks = marks
			}
			for i := range found {
				a.judge(&found[i], now)
				if found[i].there && found[i].due == "" && !a.settled(&found[i]) {
					s.add(found[i].id)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for g := range a.groups.Names {
		if err := a.walk(ctx, g, s); err != nil {
			return err
		}
	}
	return a.confirm(ctx, s)
}

// settled tells whether the indexes account for a message, so that ready need not be searched.
func (a *audit) settled(f *facts) bool {
	if f.holders() != max(f.refs, 1) {
		return false
	}
	for i := range f.groups {
		if !f.groups[i].held() && f.groups[i].record != "" {
			return false
		}
	}
	return true
}

// looks is how often a message is searched in ready, because it may move meanwhile. Searches after
// the first read the lists only, and so are quick.
const looks = 3

// confirm reports the messages that were searched for and not found.
func (a *audit) confirm(ctx context.Context, s *search) error {
	for look := 1; ; look++ {
		unsure, err := a.convictAll(ctx, s)
		if err != nil || len(unsure) == 0 {
			return err
		}
		if look == looks {
			for _, id := range unsure {
				if _, reported := a.seen[(&Violation{Fault: FaultRefs, ID: id}).key()]; !reported {
					a.Unconfirmed++
				}
			}
			return nil
		}
		s = newSearch()
		if _, s.marks, _, err = a.topic.inspect(ctx, a.groups, inspection{ids: unsure[:1]}); err != nil {
			return err
		}
		for _, id := range unsure {
			s.add(id)
		}
		for g := range a.groups.Names {
			if err := a.glance(ctx, g, s); err != nil {
				return err
			}
		}
	}
}

// convictAll judges all messages that were searched for. It returns those that it cannot judge.
func (a *audit) convictAll(ctx context.Context, s *search) (unsure []string, err error) {
	var doubtful []string
	decide := func() error {
		found, after, _, err := a.topic.inspect(ctx, a.groups, inspection{ids: doubtful, marks: s.marks})
		if err != nil {
			return err
		}
		for i := range found {
			if !a.convict(&found[i], s, after) {
				unsure = append(unsure, found[i].id)
			}
		}
		doubtful = doubtful[:0]
		return nil
	}
	for id, p := range s.first {
		if p != nowhere && len(a.groups.Names) == 1 {
			continue // its only group has it in ready
		}
		if doubtful = append(doubtful, string(id[:])); len(doubtful) == a.page() {
			if err := decide(); err != nil {
				return nil, err
			}
		}
	}
	if len(doubtful) > 0 {
		err = decide()
	}
	return unsure, err
}

// walk goes through a list of ready from the right to the left, and judges each entry. Places
// counted from the right only grow, by what comes in behind. So walk passes over no entry that was
// in the list, and may see some twice. The marks tell what was put back in front meanwhile.
//
// If refs counts too few groups for a message, walk adds the message to the search.
func (a *audit) walk(ctx context.Context, group int, s *search) error {
	for from, size := 0, a.page(); ; from += size {
		found, marks, now, err := a.topic.inspect(ctx, a.groups, inspection{source: group + 1, from: -from - size, to: -from - 1})
		if err != nil {
			return err
		}
		var again []repetition
		for i := len(found) - 1; i >= 0; i-- {
			f := &found[i]
			if a.judgeReady(f, group, marks, now) && s.marks != nil {
				s.add(f.id)
			}
			p := place{int32(group), int32(from + len(found) - 1 - i)}
			if before, is := s.see(f.id, p); is {
				again = append(again, repetition{f.id, int(before.at), int(p.at)})
			}
		}
		if err := a.repeated(ctx, group, again); err != nil {
			return err
		}
		if len(found) < size {
			return nil
		}
	}
}

// glance notes the places of a list of ready, and judges nothing.
func (a *audit) glance(ctx context.Context, group int, s *search) error {
	const size = 1000
	key := a.topic.Keys().Ready(a.groups.Names[group])
	for from := 0; ; from += size {
		entries, err := queue.Ask(a.topic.Client(), func(c redis.UniversalClient) ([]string, error) {
			return c.LRange(ctx, key, int64(-from-size), int64(-from-1)).Result()
		})
		if err != nil {
			return err
		}
		for _, entry := range entries {
			s.see(entry[:min(queue.IDLength, len(entry))], place{group: int32(group)})
		}
		if len(entries) < size {
			return nil
		}
	}
}

// convict judges one message that was searched for. It returns false if it cannot.
func (a *audit) convict(f *facts, s *search, after []mark) (sure bool) {
	if !f.there || f.due != "" {
		return true // it moved on meanwhile
	}
	sure = true
	var absent, present []string
	ready, doubtful := 0, 0 // groups that had it in ready; those that may have lost it since
	for g := range f.groups {
		recent, seen := f.groups[g].recent, s.seenIn(f.id, g)
		switch {
		case (recent || seen) && !f.groups[g].held():
			ready++
			present = append(present, a.groups.Names[g])
			if !recent && !after[g].unchanged(s.marks[g]) {
				doubtful++
			}
		case !recent && !seen && after[g].sure:
			absent = append(absent, a.groups.Names[g])
		}
		sure = sure && after[g].sure
	}
	needed, have := max(f.refs, 1), f.holders()+ready
	certain := have - doubtful
	v := Violation{ID: f.id, marks: s.marks, version: a.groups.Version, absent: absent, present: present, mending: true}
	switch {
	case have < needed && !sure:
		return false
	case have == 0:
		v.Fault, v.Detail = FaultLost, "its body is there, and it is in no state of any group"
		a.report(v)
	case have < needed:
		v.Fault, v.mending = FaultRefs, false
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, have)
		a.report(v)
	case certain > needed:
		v.Fault = FaultRefs
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, certain)
		a.report(v)
	}
	for g, in := range f.groups {
		if in.record != "" && !in.held() && !in.recent && !s.seenIn(f.id, g) && after[g].sure && have > 0 {
			v := v
			v.Fault, v.Group, v.mending = FaultRecord, a.groups.Names[g], true
			v.Detail = "it has a record of deliveries and no state"
			a.report(v)
		}
	}
	return have <= needed || doubtful == 0
}
