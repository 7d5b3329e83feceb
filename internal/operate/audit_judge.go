package operate

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// judge reports the violations that the facts about one message in some groups prove, wherever the
// message was found.
func (a *audit) judge(f *facts, groups []string, now time.Time) {
	report := func(fault Fault, group, format string, args ...any) {
		a.report(Violation{Fault: fault, Group: group, ID: f.id, Detail: fmt.Sprintf(format, args...)})
	}
	if !f.there && (f.due != "" || f.options != "" || f.refs >= 0) {
		report(FaultNoBody, "", "it waits, or has options or refs, without a body")
	}
	for i, g := range f.groups {
		name, states := groups[i], strings.Join(g.states(), " and ")
		waits := g.retry != "" || g.dead != ""
		if !f.there {
			if places := g.places(); places != "" {
				report(FaultNoBody, name, "it is %s without a body", places)
			}
			continue
		}
		switch {
		case g.unack != "" && g.lease == "":
			report(FaultLease, name, "it is in hand without a lease")
		case g.unack == "" && g.lease != "":
			report(FaultLease, name, "it has a lease and is not in hand")
		}
		if len(g.states()) > 1 {
			report(FaultStates, name, "it is %s", states)
		}
		if waits && g.record == "" {
			report(FaultRecord, name, "it is %s without a record of deliveries", states)
		} else if g.suspect != "" && (waits || g.record == "") {
			report(FaultRecord, name, "it is in suspects, which does not fit: it is %s", cmp.Or(states, "without a record of deliveries"))
		}
		if f.due != "" && (g.held() || g.lease != "") {
			report(FaultStates, name, "it is waiting and %s", g.places())
		}
	}
	if name := queue.ParseOptions(f.options).DelayID; f.there && name != "" && f.due != "" && queue.Instant(f.due).After(now) {
		switch {
		case f.owner == "" || (f.owner == f.id && f.free == ""):
			report(FaultDelayID, "", "it waits, and its delay ID %q is free", name)
		case f.owner != f.id:
			report(FaultDelayID, "", "it waits, and its delay ID %q is that of message %s", name, f.owner)
		}
	}
}

// judgeReady reports the violations that an entry of ready of a group proves. The facts are about
// that group only.
func (a *audit) judgeReady(f *facts, group string, now time.Time) {
	a.judge(f, []string{group}, now)
	report := func(fault Fault, id, detail string) {
		a.report(Violation{Fault: fault, Group: group, ID: id, Detail: detail})
	}
	switch g := f.groups[0]; {
	case f.id == nobody:
	case len(f.id) != queue.IDLength || len(f.entry) <= queue.IDLength:
		report(FaultKey, "", fmt.Sprintf("ready has an entry %.64q, which is not id:due", f.entry))
	case !f.there: // a claim drops such an entry
		report(FaultNoBody, f.id, "it is ready without a body")
	case g.held():
		report(FaultStates, f.id, "it is ready and "+g.places())
	case f.due != "":
		report(FaultStates, f.id, "it is ready and waiting")
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
