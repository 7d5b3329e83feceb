package operate

import (
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// judge reports the violations that the facts about one message in some groups prove, wherever the
// message was found.
func (a *audit) judge(f *facts, groups []string, now time.Time) {
	report := func(fault Fault, group, format string, args ...any) {
		a.report(Violation{Fault: fault, Group: group, ID: f.id, Detail: fmt.Sprintf(format, args...), mending: true})
	}
	if !f.there {
		if f.due != "" {
			report(FaultNoBody, "", "it waits without a body")
		}
		for i, g := range f.groups {
			if g.held() || g.lease != "" || g.record != "" || g.suspect != "" {
				report(FaultNoBody, groups[i], "it is %s without a body", g.places())
			}
		}
		if f.options != "" || f.refs >= 0 {
			report(FaultNoBody, "", "it has options or refs without a body")
		}
		return
	}
	for i, g := range f.groups {
		name := groups[i]
		switch {
		case g.unack != "" && g.lease == "":
			report(FaultLease, name, "it is in hand without a lease")
		case g.unack == "" && g.lease != "":
			report(FaultLease, name, "it has a lease and is not in hand")
		}
		if places := g.states(); len(places) > 1 {
			report(FaultStates, name, "it is %s", strings.Join(places, " and "))
		}
		if (g.retry != "" || g.dead != "") && g.record == "" {
			report(FaultRecord, name, "it is %s without a record of deliveries", g.places())
		}
		switch {
		case g.suspect == "":
		case g.record == "":
			report(FaultRecord, name, "a lease of it has expired, and it has no record of deliveries")
		case g.retry != "" || g.dead != "":
			report(FaultRecord, name, "it is in suspects and %s", strings.Join(g.states(), " and "))
		}
		if f.due != "" && (g.held() || g.lease != "") {
			a.report(Violation{Fault: FaultStates, Group: name, ID: f.id, Detail: "it is waiting and " + g.places()})
		}
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

// judgeReady reports the violations that an entry of ready of a group proves. The facts are about
// that group only.
func (a *audit) judgeReady(f *facts, group string, now time.Time) {
	a.judge(f, []string{group}, now)
	switch g := f.groups[0]; {
	case f.id == nobody:
	case len(f.id) != queue.IDLength || len(f.entry) <= queue.IDLength:
		a.report(Violation{Fault: FaultKey, Group: group, Detail: fmt.Sprintf("ready has an entry %.64q, which is not id:due", f.entry)})
	case !f.there: // a claim drops such an entry
		a.report(Violation{Fault: FaultNoBody, Group: group, ID: f.id, Detail: "it is ready without a body", mending: true})
	case g.held():
		a.report(Violation{Fault: FaultStates, Group: group, ID: f.id, Detail: "it is ready and " + g.places()})
	case f.due != "":
		a.report(Violation{Fault: FaultStates, Group: group, ID: f.id, Detail: "it is ready and waiting"})
	}
}

// states names the states other than ready in which the group has the message.
func (f *groupFacts) states() (places []string) {
	for _, place := range []struct{ name, found string }{{"in hand", f.unack}, {"retrying", f.retry}, {"dead", f.dead}} {
		if place.found != "" {
			places = append(places, place.name)
		}
	}
	return places
}

// places says where in a group the message is: its states, and other keys that have it.
func (f *groupFacts) places() string {
	places := f.states()
	if f.lease != "" {
		places = append(places, "in leases")
	}
	if f.record != "" {
		places = append(places, "in deliveries")
	}
	if f.suspect != "" {
		places = append(places, "in suspects")
	}
	return strings.Join(places, ", ")
}
