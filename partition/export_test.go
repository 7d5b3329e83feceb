package partition

// OfKey is where TopicOf and a Publisher put a key.
func OfKey(key string, partitions int) int { return ofKey(key, partitions) }

// Look has the Subscribes of a Subscriber spread their partitions now.
func (s *Subscriber) Look() {
	s.mu.Lock()
	var open []*subscription
	for sub := range s.open {
		open = append(open, sub)
	}
	s.mu.Unlock()
	for _, sub := range open {
		sub.look()
	}
}

// Moves is moves.
func Moves(owners, nexts []string, me string) []int { return moves(owners, nexts, me) }

// Leaving returns how many partitions of a topic wait for their handlers to be given up.
func (s *Subscriber) Leaving(topic string) (leaving int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.open {
		if sub.topic != topic {
			continue
		}
		sub.mu.Lock()
		for _, p := range sub.parts {
			if p.leaves {
				leaving++
			}
		}
		sub.mu.Unlock()
	}
	return leaving
}
