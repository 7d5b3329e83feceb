package scheduler

import (
	"maps"
	"slices"
)

// Served returns the topics that the scheduler serves.
func (s *Scheduler) Served() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.topics))
}
