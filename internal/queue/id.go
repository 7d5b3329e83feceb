package queue

import (
	"crypto/rand"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// IDLength is the length of every message ID. Scripts have it as id_length.
const IDLength = ulid.EncodedSize

// IDs makes message IDs that sort by the time and order in which they were made. They are monotonic
// ULIDs whose time never goes back, even if the clock does. Safe for concurrent use.
type IDs struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	last    uint64
	id      ulid.ULID // made last
}

// NewIDs returns a source of IDs of its own.
func NewIDs() *IDs {
	return &IDs{entropy: ulid.Monotonic(rand.Reader, 0)}
}

// IsID tells whether a text is a message ID.
func IsID(text string) bool {
	id, err := ulid.ParseStrict(text)
	return err == nil && id.String() == text
}

// Next returns the next ID.
func (s *IDs) Next(now time.Time) (string, error) {
	var one [1]Message
	err := s.Give(one[:], now)
	return one[0].ID, err
}

// Give gives each message the next ID. After an error none of the IDs may be used.
func (s *IDs) Give(messages []Message, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all strings.Builder // one piece of memory for all
	all.Grow(IDLength * len(messages))
	for i := range messages {
		s.last = max(s.last, ulid.Timestamp(now))
		err := s.entropy.MonotonicRead(s.last, s.id[6:])
		if err == ulid.ErrMonotonicOverflow {
			s.last++
			err = s.entropy.MonotonicRead(s.last, s.id[6:])
		}
		if err == nil {
			err = s.id.SetTime(s.last)
		}
		if err != nil {
			return err
		}
		var id [IDLength]byte
		_ = s.id.MarshalTextTo(id[:]) // fails only for another length
		_, _ = all.Write(id[:])       // never fails
		messages[i].ID = all.String()[i*IDLength:]
	}
	return nil
}

// Token returns a random and unique text of 16 letters and digits.
func Token() string {
	id := ulid.ULID{}
	_, _ = io.ReadFull(rand.Reader, id[6:]) // crypto/rand never fails
	return id.String()[10:]
}
