package consume

import (
	"cmp"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Settlements are the fates of messages that Redis is to be told.
type Settlements struct {
	Acks     []*queue.Leased
	Releases []Message       // were not handed out
	Nacks    []queue.Failure // in the order of delivery
	deaths   []death         // that the nacks bring about
}

// death is the end of a message by a nack, for the log.
type death struct {
	*InHand
	failure queue.Failure
	until   time.Time // if Redis answers by then, the lease still held and the message is dead
}

func (s *Settlements) empty() bool {
	return len(s.Acks) == 0 && len(s.Releases) == 0 && len(s.Nacks) == 0
}

func (s *Settlements) release(messages []Message) {
	s.Releases = append(s.Releases, messages...)
}

// fail has a failure told, and the death that it may be.
func (s *Settlements) fail(in *InHand, f queue.Failure) {
	s.Nacks = append(s.Nacks, f)
	if in.dies(f) {
		s.deaths = append(s.deaths, death{InHand: in, failure: f, until: in.deadline})
	}
}

// again has the failed parts of what was told told once more, before what was settled since.
func (s *Settlements) again(told *Settlements, failed Failed) {
	if failed&FailedAcks != 0 {
		s.Acks = append(told.Acks, s.Acks...)
	}
	if failed&FailedReleases != 0 {
		s.Releases = append(told.Releases, s.Releases...)
	}
	if failed&FailedNacks != 0 {
		s.Nacks = append(told.Nacks, s.Nacks...)
		s.deaths = append(told.deaths, s.deaths...)
	}
}

// InOrder returns the messages to be released in the order of claiming.
func (s *Settlements) InOrder() (sorted []*queue.Leased) {
	slices.SortFunc(s.Releases, func(a, b Message) int { return cmp.Compare(a.sequence, b.sequence) })
	for i := range s.Releases {
		sorted = append(sorted, &s.Releases[i].Leased)
	}
	return sorted
}
