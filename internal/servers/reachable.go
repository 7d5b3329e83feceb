package servers

import (
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

// Answer returns an error for what a server has answered. It is no error of the server's own. So
// the server is not Unreachable.
func Answer(text string) error { return &answer{text} }

type answer struct{ text string }

func (a *answer) Error() string { return a.text }

// notReady begins the errors of a server that takes no call for now, or none over a new connection.
// Such an error does not say whether the server has carried out an earlier attempt.
var notReady = []string{"LOADING ", "BUSY ", "NOAUTH ", "WRONGPASS ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "READONLY ", "MOVED ", "ASK "}

// Unreachable tells whether an error says nothing about the call, only that the server did not
// answer or was not ready.
func Unreachable(err error) bool {
	var server redis.Error
	switch {
	case err == nil, errors.Is(err, refusal.ErrForbidden), errors.As(err, new(*answer)):
		return false // the server has answered
	case !errors.As(err, &server):
		return true
	case redis.IsReadOnlyError(err): // in a script of Redis 6.2 the error begins otherwise
		return true
	}
	return slices.ContainsFunc(notReady, func(prefix string) bool {
		return strings.HasPrefix(server.Error(), prefix)
	})
}
