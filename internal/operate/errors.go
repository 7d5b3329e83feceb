package operate

import "errors"

var (
	// ErrTooLate means that the message was due, and no longer waits. A message that is named by
	// its delay ID may be gone, or be retried.
	ErrTooLate = errors.New("message was due already")
	// ErrInvalid means that an argument cannot be used.
	ErrInvalid = errors.New("invalid argument")
	// ErrChanging means that groups come and go too fast to check a whole topic.
	ErrChanging = errors.New("the set of consumer groups keeps changing")
)
