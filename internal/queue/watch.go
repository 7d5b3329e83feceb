package queue

import (
	"cmp"
	"context"
	"time"
)

// WatchRules are the ACL rules without which nobody is found gone.
const WatchRules = "+info +pubsub|numsub +pubsub|shardnumsub"

// watchBudget is how many subscriptions one call looks at, about.
const watchBudget = 1000

// Look is a look for processes that are gone. It takes as many calls as there are thousands of
// subscriptions. Its zero value is at the beginning.
type Look struct {
	Mute bool                // the server does not say who listens, so nobody is found gone
	Gone map[string][]Worker // whose processes have been gone for long enough, by group

	// Again is how long until the next look, if that is earlier than it was; else 0.
	Again time.Duration

	from   int // of the groups
	cursor string
}

// WatchCall returns the next call of a look.
func (t *Topic) WatchCall(groups *Groups, address string, look *Look) *Call {
	return t.NewCall(&watchScript, Target{Groups: groups.Names}, "version", groups.Version, "me", address, "from", max(look.from, 1),
		"cursor", cmp.Or(look.cursor, "0"), "budget", watchBudget)
}

// ReadWatch reads the reply of WatchCall. more tells that the look needs another call. It returns
// ErrStale if the set of groups has changed.
func (t *Topic) ReadWatch(call *Call, groups *Groups, look *Look) (more bool, err error) {
	reply, err := call.Read()
	if err != nil {
		return false, err
	}
	if reply.Refusal != "" {
		t.Forget(groups)
		return false, ErrStale
	}
	look.from, look.cursor, look.Mute = reply.Number("from"), reply.Text("cursor"), reply.Flag("mute")
	if again := time.Duration(reply.Number("again")) * time.Millisecond; again > 0 && (look.Again == 0 || again < look.Again) {
		look.Again = again
	}
	gone := reply.Texts("gone")
	for i := 0; i+2 < len(gone); i += 3 {
		if look.Gone == nil {
			look.Gone = map[string][]Worker{}
		}
		look.Gone[gone[i]] = append(look.Gone[gone[i]], ReadWorker(gone[i+1], gone[i+2]))
	}
	return look.from > 0, nil
}

// Disown ends the leases of subscriptions of a group that are gone, and returns how many. A step
// looks at a thousand leases of the group. It stops if all turn out to be there.
func (t *Topic) Disown(ctx context.Context, group string, subscriptions ...string) (ended int, err error) {
	from, shift, pass, last := 0, 0, 0, false
	for {
		d := t.Draft(&disownScript, Target{Group: group}, "from", from, "shift", shift, "last", last)
		for _, name := range subscriptions {
			d.Each("subscription", "subscription", name)
		}
		call := d.Call()
		if err := Do(ctx, t.client, call); err != nil {
			return ended, err
		}
		reply, err := call.Read()
		if err != nil || reply.Refusal != "" {
			return ended, err
		}
		ended, pass = ended+reply.Number("ended"), pass+reply.Number("ended")
		last = last && pass == 0
		from, shift = reply.Number("from"), reply.Number("shift")
		if from == 0 {
			if last && pass == 0 {
				return ended, nil
			}
			last, pass = pass == 0, 0
		}
	}
}

// Sign notes at once that a subscription lives, if it has a note. worker is a text of the function
// Sign.
func (g *Group) Sign(ctx context.Context, subscription, worker string) error {
	return Do(ctx, g.topic.client, g.topic.NewCall(&signScript, Target{Group: g.Name}, "subscription", subscription, "worker", worker))
}
