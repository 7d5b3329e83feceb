package operate

import (
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// judge reports the violations that the facts about one message prove, wherever the message was
// found.
func (a *audit) judge(f *facts, now time.Time) {
	report := func(fault Fault, group, format string, args ...any) {
		a.report(Violation{Fault: fault, Group: group, ID: f.id, Detail: fmt.Sprintf(format, args...), mending: true})
	}
	if !f.there {
		if f.due != "" {
			report(FaultNoBody, "", "it is in pending without a body")
		}
		for i, g := range f.groups {
			if g.held() || g.lease != "" || g.record != "" || g.suspect != "" {
				report(FaultNoBody, a.groups.Names[i], "it is in %s without a body", g.places())
			}
		}
		if f.options != "" || f.refs >= 0 {
			report(FaultNoBody, "", "it has options or refs without a body")
		}
		return
	}
	for i, g := range f.groups {
		name := a.groups.Names[i]
		switch {
		case g.unack != "" && g.lease == "":
			report(FaultLease, name, "it is in unack without a lease")
		case g.unack == "" && g.lease != "":
			report(FaultLease, name, "it has a lease and is not in unack")
		}
		if places := g.states(); len(places) > 1 {
			report(FaultStates, name, "it is in %s", strings.Join(places, " and "))
		}
		if (g.retry != "" || g.dead != "") && g.record == "" {
			report(FaultRecord, name, "it is in %s without a record of deliveries", g.places())
		}
		switch {
		case g.suspect == "":
		case g.record == "":
			report(FaultRecord, name, "a lease of it has expired, and it has no record of deliveries")
		case g.retry != "" || g.dead != "":
			report(FaultRecord, name, "it is in suspects and in %s", strings.Join(g.states(), " and "))
		}
		if f.due != "" && (g.held() || g.lease != "") {
			a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in pending and in " + g.places()})
		}
	}
	if holders := f.holders(); f.due == "" && holders > max(f.refs, 1) {
		report(FaultRefs, "", "refs says that %d groups need it, and %d have it", max(f.refs, 1), holders)
	}
	if name := queue.ParseOptions(f.options).DelayID; name != "" && f.due != "" && queue.Instant(f.due).After(now) {
		switch {
		case f.owner == "" || (f.owner == f.id && f.free == ""):
			report(FaultDelayID, "", "it waits, and its delay ID %q is free", name)
		case f.owner != f.id:
			a.report(Violation{Fault: FaultDelayID, ID: f.id, Detail: fmt.Sprintf("it waits, and its delay ID %q is that of message %s", name, f.owner)})
		}
	}
}

// judgeReady reports the violations that an entry of ready proves. It returns true if refs counts
// fewer groups than have the message. The marks are of the same time.
func (a *audit) judgeReady(f *facts, group int, marks []mark, now time.Time) (few bool) {
	a.judge(f, now)
	name := a.groups.Names[group]
	switch g := f.groups[group]; {
	case f.id == nobody:
	case len(f.id) != queue.IDLength || len(f.entry) <= queue.IDLength:
		a.report(Violation{Fault: FaultKey, Group: name, Detail: fmt.Sprintf("ready has an entry %.64q, which is not id:due", f.entry)})
	case !f.there: // a claim drops such an entry
		a.report(Violation{Fault: FaultNoBody, Group: name, ID: f.id, Detail: "it is in ready without a body", mending: true})
	case g.held():
		a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in ready and in " + g.places()})
	case f.due != "":
		a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is in ready and in pending"})
	case f.holders()+1 > max(f.refs, 1):
		a.report(Violation{Fault: FaultRefs, ID: f.id, marks: marks, version: a.groups.Version, present: []string{name}, mending: true,
			Detail: fmt.Sprintf("refs says that %d groups need it, and %d have it", max(f.refs, 1), f.holders()+1)})
		return true
	}
	return false
}

// states names the states other than ready in which the group has the message.
func (f *groupFacts) states() (places []string) {
	for _, place := range []struct{ name, found string }{{"unack", f.unack}, {"retry", f.retry}, {"dead", f.dead}} {
		if place.found != "" {
			places = append(places, place.name)
		}
	}
	return places
}

// places names the keys of a group that have the message.
func (f *groupFacts) places() string {
	places := f.states()
	if f.lease != "" {
		places = append(places, "leases")
	}
	if f.record != "" {
		places = append(places, "deliveries")
	}
	if f.suspect != "" {
		places = append(places, "suspects")
	}
	return strings.Join(places, ", ")
}
