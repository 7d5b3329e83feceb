package consume

import (
	"cmp"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Settlements are decisions about messages that Redis has to be told.
type Settlements struct {
	Acks     []*queue.Leased
	Drops    []*queue.Leased // told with acks: it is too late for these
	Releases []Message       // leases to give back: of messages that nobody got, and lost ones
	Nacks    []queue.Failure // in the order of delivery
	deaths   []death         // nacks that make dead letters
}

// death is a nack that makes a dead letter, for the log.
type death struct {
	*InHand
	failure queue.Failure
	until   time.Time // the lease lasts until then; if Redis answers later, the nack may be void
}

func (s *Settlements) empty() bool {
	return s.decided() == 0 && len(s.Releases) == 0
}

// decided returns how many deliveries the settlements end that the consumer had, or that it was too
// late for. Releases end none.
func (s *Settlements) decided() int { return len(s.Acks) + len(s.Drops) + len(s.Nacks) }

// takeAcks takes the acks and drops out. They may go to Redis at any time.
func (s *Settlements) takeAcks() (taken Settlements) {
	taken.Acks, taken.Drops = s.Acks, s.Drops
	s.Acks, s.Drops = nil, nil
	return taken
}

func (s *Settlements) release(messages []Message) {
	s.Releases = append(s.Releases, messages...)
}

// nack adds the failure of a delivery.
func (s *Settlements) nack(in *InHand, f queue.Failure) {
	s.Nacks = append(s.Nacks, f)
	if in.dies(f) {
		s.deaths = append(s.deaths, death{InHand: in, failure: f, until: in.deadline})
	}
}

// again adds the parts of told that failed, before those that were decided since.
func (s *Settlements) again(told *Settlements, failed Failed) {
	if failed&FailedAcks != 0 {
		s.Acks, s.Drops = append(told.Acks, s.Acks...), append(told.Drops, s.Drops...)
	}
	if failed&FailedReleases != 0 {
		s.Releases = append(told.Releases, s.Releases...)
	}
	if failed&FailedNacks != 0 {
		s.Nacks = append(told.Nacks, s.Nacks...)
		s.deaths = append(told.deaths, s.deaths...)
	}
}

// ReleasesInOrder returns the messages to be released in the order of claiming.
func (s *Settlements) ReleasesInOrder() (sorted []*queue.Leased) {
	slices.SortFunc(s.Releases, func(a, b Message) int { return cmp.Compare(a.sequence, b.sequence) })
	for i := range s.Releases {
		sorted = append(sorted, &s.Releases[i].Leased)
	}
	return sorted
}
