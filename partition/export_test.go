package partition

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
)

// OfKey is where TopicOf and a Publisher put a key.
func OfKey(key string, n int) int { return partitions.OfKey(key, n) }

// Refresh sets how old a number of partitions may be that the Publisher uses.
func (p *Publisher) Refresh(after time.Duration) { p.numbers.refresh = after }

// Follow sets how often a Subscribe looks for another number of partitions.
func (s *Subscriber) Follow(every time.Duration) { s.follow = every }

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
