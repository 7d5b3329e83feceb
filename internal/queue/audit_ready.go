package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// search looks through ready for messages that should be there, as no index says where they are. It holds them all
// in mind, so that it goes through the lists once, however many there are: about a hundred bytes each.
type search struct {
	marks []mark
	first map[messageID]place   // where each was seen first
	more  map[messageID][]place // and again: in other groups, or in the same
}

// messageID is an id without memory of its own, as there may be millions.
type messageID [IDLength]byte

func idOf(id string) (m messageID) {
	copy(m[:], id)
	return m
}

// place is where in the ready list of a group a message was, counted from the right end.
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

// see notes where a message is that is searched for. It returns where else it was in the same group.
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

// bodies looks at every body, and through ready for those that should be there.
func (a *audit) bodies(ctx context.Context) error {
	s := newSearch()
	err := a.scan(ctx, []index{hash(a.topic.keys.Messages())}, func(ids []string) error {
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

// settled tells that the indexes account for a message, so that ready need not be looked through for it.
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

// looks is how often ready is looked through for what was not found, and may have moved meanwhile. All but the
// first look only for that, and so are quick.
const looks = 3

// confirm reports those that were searched for and are not there.
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

// convictAll decides about all that were searched for, and returns those of which it cannot be sure.
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
			continue // it is where it should be
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

// walk goes through a list of ready from the right to the left, and judges each entry. Places counted from the
// right only grow, by what comes in behind, so nothing that was in the list is passed over; some may be seen
// twice. What is put back in front meanwhile is known by the marks.
//
// What has too few groups counted, and is ready besides, is searched for from then on.
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

// glance is walk to see what is there, and no more.
func (a *audit) glance(ctx context.Context, group int, s *search) error {
	const size = 1000
	key := a.topic.keys.Ready(a.groups.Names[group])
	for from := 0; ; from += size {
		entries, err := a.topic.client.LRange(ctx, key, int64(-from-size), int64(-from-1)).Result()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			s.see(entry[:min(IDLength, len(entry))], place{group: int32(group)})
		}
		if len(entries) < size {
			return nil
		}
	}
}

// convict decides about a message that ready was looked through for. It returns false if that cannot be told.
func (a *audit) convict(f *facts, s *search, after []mark) (sure bool) {
	if !f.there || f.due != "" {
		return true // it went its way meanwhile
	}
	sure = true
	var absent, present []string
	ready, doubtful := 0, 0 // groups that had it in ready; of those, the ones that may have it no more
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

// byID puts violations in an order that does not depend on that of a map.
func byID(a, b Violation) int { return strings.Compare(a.ID, b.ID) }
