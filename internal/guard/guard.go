// Package guard calls users' code: loggers, Unmarshalers, Backoff, contexts, error values, and the
// hooks of clients. It turns a panic there into an error, so that it ends one message or call and
// not the process.
//
// A deferred Recover costs nanoseconds. It does not stop runtime.Goexit, which ends the goroutine.
// Apart does, because it calls the code in a goroutine of its own.
package guard

import (
	"context"
	"errors"
	"fmt"
)

// Recover is for defer. It sets *err if the deferring function panics. what names the user's code,
// as the subject of a sentence.
func Recover(err *error, what string) {
	if p := recover(); p != nil {
		*err = panicked(what, p)
	}
}

func panicked(what string, p any) error { return fmt.Errorf("%s panicked: %v", what, p) }

// Exited returns the error for user code that has called runtime.Goexit.
func Exited(what string) error { return fmt.Errorf("%s called runtime.Goexit", what) }

// OnExit is for defer. It calls f if the deferring function ends by runtime.Goexit. That sets
// *returned before it returns. A panic goes on.
func OnExit(returned *bool, f func()) {
	if p := recover(); p != nil {
		panic(p) // locks may be held, so that f could wait for ever
	}
	if !*returned {
		f()
	}
}

// Apart calls f in a goroutine of its own, and waits for its end. It returns an error if f panics
// or calls runtime.Goexit. It is for rare calls, since it costs about half a microsecond.
func Apart(what string, f func()) error {
	end := make(chan error, 1)
	go func() {
		returned := false
		defer func() {
			switch p := recover(); {
			case p != nil:
				end <- panicked(what, p)
			case !returned:
				end <- Exited(what)
			default:
				end <- nil
			}
		}()
		f()
		returned = true
	}()
	return <-end
}

// errProbe is an error that no user's error is.
var errProbe = errors.New("probe")

// Sound returns an error of the user's code if its methods can be called. Otherwise, as with a nil
// pointer in the error interface, it returns an error that says so. It returns nil for nil.
func Sound(err error) error {
	if err == nil {
		return nil
	}
	fault := Apart(fmt.Sprintf("Error or Is of an error of type %T", err), func() {
		_ = err.Error()
		_ = errors.Is(err, errProbe) // calls Is and Unwrap
	})
	if fault != nil {
		return fault
	}
	return err
}

// Err returns the error of a context. A context that panics has ended.
func Err(ctx context.Context) (err error) {
	defer Recover(&err, "the context")
	return ctx.Err()
}
