package operate

import (
	"errors"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

var (
	// ErrTooLate means that some group has the message and does not wait for it. A message may be
	// gone, if its delay ID is still taken.
	ErrTooLate = errors.New("too late")
	// ErrInvalid means that an argument cannot be used.
	ErrInvalid = errors.New("invalid argument")
	// ErrChanging means that groups come and go too fast to check a whole topic.
	ErrChanging = errors.New("the set of consumer groups keeps changing")
	// ErrNoMessage means that the topic has no such message. It wraps queue.ErrNotFound.
	ErrNoMessage = fmt.Errorf("message %w", queue.ErrNotFound)
)

// noMessage returns the error for a message that is not there, with all that is known of it.
func (t *Topic) noMessage(ref Ref) error {
	known := texts.Ended
	if ref.ID == "" {
		known = texts.Unnamed
	}
	return fmt.Errorf("%v of topic %q: %w: %s", ref, t.Name, ErrNoMessage, known)
}
