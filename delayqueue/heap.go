package delayqueue

import "time"

// entry is one item in the heap.
type entry[T any] struct {
	due   time.Time
	seq   uint64 // order of arrival, for equal due times
	value T
}

func (e *entry[T]) before(other *entry[T]) bool {
	if c := e.due.Compare(other.due); c != 0 {
		return c < 0
	}
	return e.seq < other.seq
}

// entryHeap is a binary min-heap. It does not use container/heap, because that
// converts every item to an interface, which allocates.
type entryHeap[T any] []entry[T]

func (h *entryHeap[T]) push(e entry[T]) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !s[i].before(&s[parent]) {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

// pop removes and returns the first entry. The heap must not be empty.
func (h *entryHeap[T]) pop() entry[T] {
	s := *h
	first := s[0]
	last := len(s) - 1
	s[0] = s[last]
	s[last] = entry[T]{} // the array must keep no reference to the value
	s = s[:last]
	*h = s

	i := 0
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s); child++ {
			if s[child].before(&s[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}
