package queue

import (
	"context"
	"fmt"
	"slices"
)

// candidate is a message whose indexes do not say where it is, so that it should be ready.
type candidate struct {
	seen map[int]bool // groups in whose ready it was found
}

// bodies looks at every body, and through ready for those that should be there.
func (a *audit) bodies(ctx context.Context) error {
	var marks []mark
	candidates := map[string]*candidate{}
	cursor, err := "0", error(nil)
	for {
		var ids []string
		if cursor, ids, err = a.scan(ctx, a.topic.keys.Messages(), "HSCAN", cursor); err != nil {
			return err
		}
		a.Messages += len(ids)
		for part := range slices.Chunk(ids, a.page()) {
			found, fresh, now, err := a.topic.inspect(ctx, a.groups, inspection{ids: part})
			if err != nil {
				return err
			}
			if marks == nil {
				marks = fresh
			}
			for i := range found {
				a.judge(&found[i], now)
				if found[i].there && found[i].due == "" && !a.settled(&found[i]) {
					candidates[found[i].id] = &candidate{seen: map[int]bool{}}
				}
			}
		}
		if len(candidates) >= auditRound || cursor == "0" {
			if err := a.confirm(ctx, candidates, marks); err != nil {
				return err
			}
			marks = nil
			clear(candidates)
		}
		if cursor == "0" {
			return nil
		}
	}
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

// confirm looks through ready for the candidates, and reports those that are not there.
func (a *audit) confirm(ctx context.Context, candidates map[string]*candidate, marks []mark) error {
	for g := range a.groups.Names {
		if err := a.walk(ctx, g, candidates, marks != nil); err != nil {
			return err
		}
	}
	a.walked = true
	var doubtful []string
	for id, c := range candidates {
		if len(c.seen) != 1 || len(a.groups.Names) > 1 {
			doubtful = append(doubtful, id)
		}
	}
	slices.Sort(doubtful)
	for part := range slices.Chunk(doubtful, a.page()) {
		found, after, _, err := a.topic.inspect(ctx, a.groups, inspection{ids: part, marks: marks})
		if err != nil {
			return err
		}
		for i := range found {
			a.convict(&found[i], candidates[found[i].id], marks, after)
		}
	}
	return nil
}

// walk goes through a list of ready from the right to the left. Places counted from the right only grow, by
// what comes in behind, so nothing that was in the list is passed over; some may be seen twice. What is put
// back in front meanwhile is known by the marks.
//
// What has too few groups counted, and is ready besides, becomes a candidate if more is set.
func (a *audit) walk(ctx context.Context, group int, candidates map[string]*candidate, more bool) error {
	size := a.page()
	if a.walked {
		size = 1000
	}
	for from := 0; ; from += size {
		var entries []string
		if a.walked { // only to see what is there
			var err error
			key := a.topic.keys.Ready(a.groups.Names[group])
			if entries, err = a.topic.client.LRange(ctx, key, int64(-from-size), int64(-from-1)).Result(); err != nil {
				return err
			}
		} else {
			found, marks, now, err := a.topic.inspect(ctx, a.groups, inspection{source: group + 1, from: -from - size, to: -from - 1})
			if err != nil {
				return err
			}
			for i := range found {
				entries = append(entries, found[i].entry)
				if a.judgeReady(&found[i], group, marks, now) && more && candidates[found[i].id] == nil {
					candidates[found[i].id] = &candidate{seen: map[int]bool{}}
				}
			}
		}
		for _, entry := range entries {
			id := entry[:min(IDLength, len(entry))]
			if c := candidates[id]; c != nil {
				c.seen[group] = true
			}
		}
		if len(entries) < size {
			return nil
		}
	}
}

// convict decides about a message that ready was looked through for.
func (a *audit) convict(f *facts, c *candidate, before, after []mark) {
	if !f.there || f.due != "" {
		return // it went its way meanwhile
	}
	sure, still := true, true
	var absent, present []string
	ready := 0
	for g := range f.groups {
		if f.groups[g].recent || c.seen[g] {
			if !f.groups[g].held() {
				ready++
				present = append(present, a.groups.Names[g])
			}
		} else if after[g].sure {
			absent = append(absent, a.groups.Names[g])
		}
		sure = sure && after[g].sure
		still = still && after[g].returned == before[g].returned && after[g].last == before[g].last && after[g].length == before[g].length
	}
	needed, holders := max(f.refs, 1), f.holders()
	v := Violation{ID: f.id, marks: before, version: a.groups.Version, absent: absent, present: present, mending: true}
	switch {
	case holders+ready < needed && !sure:
		a.Unconfirmed++
	case holders+ready == 0:
		v.Fault, v.Detail = FaultLost, "its body is there, and it is in no state of any group"
		a.report(v)
	case holders+ready < needed:
		v.Fault, v.mending = FaultRefs, false
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, holders+ready)
		a.report(v)
	case holders+ready > needed && still:
		v.Fault = FaultRefs
		v.Detail = fmt.Sprintf("refs says that %d groups need it, and %d have it", needed, holders+ready)
		a.report(v)
	}
	for g, in := range f.groups {
		if in.record != "" && !in.held() && !in.recent && !c.seen[g] && after[g].sure && holders+ready > 0 {
			v := v
			v.Fault, v.Group, v.mending = FaultRecord, a.groups.Names[g], true
			v.Detail = "it has a record of deliveries and no state"
			a.report(v)
		}
	}
}
