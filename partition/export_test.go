package partition

import (
	"maps"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
)

// OfKey is where TopicOf and a Publisher put a key.
func OfKey(key string, n int) int { return partitions.OfKey(key, n) }

// Refresh sets how old a number of partitions may be that the Publisher uses.
func (p *Publisher) Refresh(after time.Duration) { p.numbers.refresh = after }

// Follow sets how often a Subscribe looks for another number of partitions.
func (s *Subscriber) Follow(every time.Duration) { s.follow = every }

// Shares returns into how many shares the only Subscribe of a Subscriber divides its limit.
func (s *Subscriber) Shares() int { return s.only(func(*reading) {}) }

// FollowNow has the only Subscribe of a Subscriber look for another number now. It returns Shares.
func (s *Subscriber) FollowNow() int { return s.only((*reading).followNumber) }

func (s *Subscriber) only(do func(*reading)) int {
	s.mu.Lock()
	r := slices.Collect(maps.Keys(s.open))[0]
	s.mu.Unlock()
	reply := make(chan int, 1)
	select {
	case r.events <- func() bool { do(r); reply <- r.shares; return true }:
		return <-reply
	case <-r.closed:
		return 0
	}
}

// Look has the Subscribes of a Subscriber spread their partitions now. It returns how many of a
// topic wait until their handlers are done.
func (s *Subscriber) Look(topic string) (leaving int) {
	s.mu.Lock()
	var open []*reading
	for r := range s.open {
		open = append(open, r)
	}
	s.mu.Unlock()
	for _, r := range open {
		reply := make(chan int, 1)
		select {
		case r.events <- func() bool {
			r.spread()
			reply <- r.leaving()
			return true
		}:
		case <-r.closed:
			continue
		}
		if n := <-reply; r.topic == topic {
			leaving += n
		}
	}
	return leaving
}

// Moves is moves.
func Moves(owners, nexts []string, me string) []int { return moves(owners, nexts, me) }

// LookEvery sets how often members look at the seats.
func (s *Subscriber) LookEvery(d time.Duration) { s.look = d }

// TakeFor sets how long a standby may take to become active in a partition that was given up.
func (s *Subscriber) TakeFor(d time.Duration) { s.take = d }
func (r *reading) leaving() (n int) {
	for _, p := range r.parts {
		if p.leaves {
			n++
		}
	}
	return n
}
