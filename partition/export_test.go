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
