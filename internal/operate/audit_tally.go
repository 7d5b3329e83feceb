package operate

import (
	"math"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// tallies count in how many groups each message was seen. They hold all messages that are not
// waiting, about a hundred bytes each, so that each key of a group is read once. Groups are counted
// one after the other.
type tallies map[messageID]tally

// messageID is an ID that needs no memory of its own, because there may be millions.
type messageID [queue.IDLength]byte

func idOf(id string) (m messageID) {
	copy(m[:], id)
	return m
}

type tally struct {
	needed int32 // groups that need the message, as refs says
	groups int32 // groups that were seen to have it
	last   int32 // number of the last of these
	at     int32 // place in ready of that group, from the right end; -1: it was not seen there
}

// begin begins to count a message.
func (all tallies) begin(f *facts) {
	all[idOf(f.id)] = tally{needed: int32(min(f.needed(), math.MaxInt32)), last: -1, at: -1}
}

// held counts a group that has a message in a state other than ready.
func (all tallies) held(id string, group int) {
	m := idOf(id)
	if t, counted := all[m]; counted && t.last != int32(group) {
		t.groups, t.last, t.at = t.groups+1, int32(group), -1
		all[m] = t
	}
}

// ready counts a group that has a message in ready, at a place. It returns an earlier place in that
// list.
func (all tallies) ready(id string, group, at int) (before int, again bool) {
	all.held(id, group)
	m := idOf(id)
	t, counted := all[m]
	if !counted {
		return 0, false
	}
	if t.at >= 0 {
		return int(t.at), true
	}
	t.at = int32(at)
	all[m] = t
	return 0, false
}

// wasReady tells whether the group that was counted last had the message in ready. It returns true
// for a message that is not counted.
func (all tallies) wasReady(id string, group int) bool {
	t, counted := all[idOf(id)]
	return !counted || t.last == int32(group) && t.at >= 0
}

// suspects returns the messages that were seen in more or fewer groups than need them.
func (all tallies) suspects() (ids []string) {
	for m, t := range all {
		if t.groups != t.needed {
			ids = append(ids, string(m[:]))
		}
	}
	return ids
}
