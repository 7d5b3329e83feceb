package operate

import "errors"

var (
	// ErrTooLate means that some group has the message and does not wait for it. A message may be
	// gone, if its delay ID is still taken.
	ErrTooLate = errors.New("too late")
	// ErrInvalid means that an argument cannot be used.
	ErrInvalid = errors.New("invalid argument")
	// ErrChanging means that groups come and go too fast to check a whole topic.
	ErrChanging = errors.New("the set of consumer groups keeps changing")
)
