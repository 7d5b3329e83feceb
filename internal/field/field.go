// Package field makes the errors about fields of configurations. The root package exports the types
// and values, and all packages use them.
package field

import (
	"errors"
	"fmt"
)

// ErrInvalidConfig is wrapped by every Error.
var ErrInvalidConfig = errors.New("invalid configuration")

// Error is a fault of one field of a configuration.
type Error struct {
	Field string // such as "KeyPrefix", "Topics[2]" or "Subscriber.Broadcast"
	Fault string // such as "is required"
}

// Error says which field is invalid, and why.
func (e *Error) Error() string { return fmt.Sprintf("%v: %s %s", ErrInvalidConfig, e.Field, e.Fault) }

// Unwrap returns ErrInvalidConfig.
func (e *Error) Unwrap() error { return ErrInvalidConfig }

// Invalid returns the error about a field.
func Invalid(name, format string, args ...any) error {
	return &Error{Field: name, Fault: fmt.Sprintf(format, args...)}
}

// Check returns the error about a field, whose fault is the text of err. It returns nil for nil.
func Check(name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Field: name, Fault: err.Error()}
}

// Required checks a field that has no default.
func Required(name string, there bool) error {
	if there {
		return nil
	}
	return Invalid(name, "is required")
}

// NotNegative checks a field whose zero value means the default.
func NotNegative[N ~int | ~int64](name string, n N) error {
	if n < 0 {
		return Invalid(name, "is %v; it has to be positive, or zero for the default", n)
	}
	return nil
}

// AtMost checks a field that has a maximum.
func AtMost(name string, n, most int) error {
	if n > most {
		return Invalid(name, "is %d; it may be %d at most", n, most)
	}
	return nil
}

// Within returns the errors about the fields of a configuration that is itself the field of that
// name in another one.
func Within(name string, err error) error {
	switch err := err.(type) {
	case *Error:
		return &Error{Field: name + "." + err.Field, Fault: err.Fault}
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range err.Unwrap() {
			all = append(all, Within(name, one))
		}
		return errors.Join(all...)
	}
	return err
}
