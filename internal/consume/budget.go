package consume

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Common is what several subscriptions have in common that are one for the consumer.
type Common struct {
	Member string                // the first letters of the names of all of them
	Out    chan *message.Message // all of them hand out here; none closes it
	Budget *Budget

	Limit atomic.Pointer[queue.GroupLimit] // of each group; nil: that of its Options
	Set   *queue.GroupLimit                // that an operator has set, for groups that are new; nil: none

	SetHistory *queue.History // as Set
}

// GroupOptions returns the options to register a group with. set: it may be new.
func (c *Common) GroupOptions(options queue.GroupOptions, set bool) queue.GroupOptions {
	if c == nil {
		return options
	}
	if limit := c.Limit.Load(); limit != nil {
		options.Limit = *limit
	}
	if set {
		options.Set, options.SetHistory = c.Set, c.SetHistory
	}
	return options
}

// Budget is the number of messages that the consumer of several subscriptions has at once at most.
// A subscription needs a place for each message that it hands out. It asks for places before it
// claims, too. Places that are free go to the subscriptions in the order of asking.
//
// While subscriptions wait for places, a subscription gives up those above its fair share as its
// messages are settled. A subscription without work holds no place. One that holds places that it
// does not use, and does nothing for a while, loses them: perhaps its server does not answer.
type Budget struct {
	mu      sync.Mutex
	total   int
	free    int
	active  int      // number of subscriptions that want a place, or hold one
	shares  []*Share // of the subscriptions that have not ended
	waiting []*Share // those that want more places than they hold, in the order of asking
	timer   *time.Timer
	armed   bool // the timer runs
}

// NewBudget returns a budget of so many places.
func NewBudget(total int) *Budget {
	b := &Budget{total: total, free: total}
	b.timer = stoppedTimer(b.revoke)
	return b
}

// Share is one subscription's part of a Budget. Budget.mu guards the fields.
type Share struct {
	of    *Budget
	told  func() // called, under the mutex, when the subscription has got places while it waited
	has   int    // places that it holds
	needs int    // places of messages that are handed out; they cannot be taken away
	wants int    // places that it could use
	idle  bool   // it has not called Hold since the last look of revoke
}

// Join returns the share of another subscription.
func (b *Budget) Join(told func()) *Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &Share{of: b, told: told}
	b.shares = append(b.shares, s)
	return s
}

// Leave takes the share of a subscription that has ended out of the budget.
func (s *Share) Leave() {
	s.Hold(0, 0)
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares = slices.DeleteFunc(b.shares, func(other *Share) bool { return other == s })
}

// Hold tells how many places the subscription needs for messages that are handed out, and how many
// it could use in all. It returns how many it has, and the fair share of each subscription that
// wants places.
func (s *Share) Hold(needs, wants int) (has int, fair float64) {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	wants = max(needs, wants)
	if was, is := s.wants > 0, wants > 0; was != is {
		if is {
			b.active++
		} else {
			b.active--
		}
	}
	keep := min(s.has, wants)
	waits := slices.Contains(b.waiting, s)
	others := len(b.waiting) > 1 || len(b.waiting) == 1 && !waits
	if settled := needs < s.needs; settled && others {
		keep = min(keep, max(needs, b.fair()))
	}
	if gives := keep < s.has; waits && (gives || wants <= keep) { // to the end, or away
		b.waiting = slices.DeleteFunc(b.waiting, func(other *Share) bool { return other == s })
		waits = false
	}
	if wants > keep && !waits {
		b.waiting = append(b.waiting, s)
	}
	b.free += s.has - keep
	s.has, s.wants, s.idle = keep, wants, false
	b.distribute(s)
	s.needs = min(needs, s.has)
	return s.has, float64(b.total) / float64(max(b.active, 1))
}

// fair is how many places each of the active subscriptions may keep; 0 if these are too many.
func (b *Budget) fair() int { return b.total / max(b.active, 1) }

// distribute gives the free places to those that wait, and tells all of them but one.
func (b *Budget) distribute(but *Share) {
	for b.free > 0 && len(b.waiting) > 0 {
		first := b.waiting[0]
		b.waiting = slices.Delete(b.waiting, 0, 1)
		n := min(first.wants-first.has, max(1, b.fair()-first.has), b.free)
		first.has += n
		b.free -= n
		if first.has < first.wants {
			b.waiting = append(b.waiting, first)
		}
		if first != but {
			first.told()
		}
	}
	if len(b.waiting) > 0 && !b.armed {
		b.armed = true
		b.timer.Reset(longestStay)
	}
}

// revoke takes places from subscriptions that have not used them since the last look. They ask
// again when they go on.
func (b *Budget) revoke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	for _, s := range b.shares {
		if s.idle && s.has > s.needs {
			b.free += s.has - s.needs
			s.has, s.wants = s.needs, s.needs
			if s.wants == 0 {
				b.active--
			}
			b.waiting = slices.DeleteFunc(b.waiting, func(other *Share) bool { return other == s })
		}
		s.idle = true
	}
	b.distribute(nil)
}
