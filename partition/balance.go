package partition

import (
	"cmp"
	"time"
)

// With SingleActive each partition has one active subscription, and the first Subscribe has them
// all. The members, which are the Subscribes of one group, spread them as follows.
//
// Each member looks now and then at all seats: which member is active in a partition, and which
// standby would be woken next. From the same seats all members compute the same moves, from the
// member with the most partitions to that with the fewest, as long as the two differ by two. A
// member carries out its own moves, in partitions where the receiver is next. It ends its
// subscription there when the handlers at work are done, which wakes the next standby at once. Then
// it subscribes again, and stands by. No other partition notices.
//
// A move makes the sum of the squares of all counts smaller, so the moves end. At rest no two
// members differ by more than one. Which standby is next changes with each poll, so each member has
// its turn. If it changed between the look and the move, another member gets the partition. It
// looks too, and gives it on.
//
// A member that is given a partition may not take it, as a process that stands still does not. Then
// the giver takes the partition back after a moment, and passes that member over: for two looks
// first, and for twice as long each further time. A member that takes what it is given is trusted
// again.
//
// All of this takes members with the same number of partitions. Others count differently, and may
// give a partition to and fro, once a look.
//
// Rendezvous hashing would need no counts. But it spreads 12 partitions over 3 members as unevenly
// as chance, and the seats have to be read all the same. With counts the fewest partitions move.

// member is the first letters of the names of all subscriptions of one Subscribe.
func member(subscription string) string {
	return subscription[:min(len(subscription), memberLength)]
}

// memberLength leaves half of a name for the difference between the subscriptions of a member.
const memberLength = 8

// moves returns the partitions that a member gives up now. owners and nexts have a member for each
// partition, "" for none.
func moves(owners, nexts []string, me string) (gives []int) {
	count := map[string]int{} // also of members that have none yet
	for i, owner := range owners {
		count[cmp.Or(owner, nexts[i])]++ // a free place is about to be that of the next one
		count[nexts[i]] += 0
	}
	delete(count, "")
	if len(count) == 0 {
		return nil
	}
	due := map[string]int{} // receiver -> partitions that it gets from this member
	for {
		most, least := "", ""
		for m, n := range count {
			if most == "" || n > count[most] || n == count[most] && m < most {
				most = m
			}
			if least == "" || n < count[least] || n == count[least] && m < least {
				least = m
			}
		}
		if count[most]-count[least] < 2 {
			break
		}
		count[most]--
		count[least]++
		if most == me {
			due[least]++
		}
	}
	for i, owner := range owners {
		if owner == me && due[nexts[i]] > 0 {
			due[nexts[i]]--
			gives = append(gives, i)
		}
	}
	return gives
}

// passes are the members that a member passes over, because they did not take what it gave them.
type passes map[string]pass

// pass is for how long a member is passed over.
type pass struct {
	until time.Time
	lasts time.Duration
}

// mostPassed is for how long a member is passed over at most.
const mostPassed = 10 * time.Minute

// failed notes that a member did not take a partition, and returns for how long it is passed over:
// for a time at first.
func (p passes) failed(member string, now time.Time, first time.Duration) time.Duration {
	lasts := min(max(2*p[member].lasts, first), mostPassed)
	p[member] = pass{now.Add(lasts), lasts}
	return lasts
}

// took notes that a member has taken a partition.
func (p passes) took(member string) { delete(p, member) }

// without removes the members that are passed over now from the members in seats.
func (p passes) without(now time.Time, seats ...[]string) {
	for _, members := range seats {
		for i, m := range members {
			if now.Before(p[m].until) {
				members[i] = ""
			}
		}
	}
}

// give returns the parts of the reading that it gives up now, and notes their receivers. owners and
// nexts are the members in the seats.
func (r *reading) give(owners, nexts []string) (gives []*part) {
	r.passes.without(time.Now(), owners, nexts)
	for i, p := range r.parts {
		if p.leaves && owners[i] == r.common.Member && nexts[i] != "" {
			owners[i] = nexts[i] // it counts as given
		}
	}
	for _, i := range moves(owners, nexts, r.common.Member) {
		r.parts[i].receiver = nexts[i]
		gives = append(gives, r.parts[i])
	}
	return gives
}
