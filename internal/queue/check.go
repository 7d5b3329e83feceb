package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// DefaultPrefix is what keys begin with unless the user says otherwise.
const DefaultPrefix = "redisdelay"

// MaxNameLength is the longest topic or consumer group, in bytes.
const MaxNameLength = 512

// CheckTopic tells why a topic cannot be used, or returns nil.
func CheckTopic(topic string) error {
	switch {
	case topic == "":
		return errors.New("topic is empty; it needs a name")
	case len(topic) > MaxNameLength:
		return fmt.Errorf("topic %q... has %d bytes; at most %d are allowed", topic[:32], len(topic), MaxNameLength)
	}
	return nil
}

// CheckPrefix tells why a key prefix cannot be used, or returns nil.
func CheckPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("%q has a brace, which would change the hash tag of every key", prefix)
	}
	return nil
}

// notReady begins the errors of a server that takes no call for now, whatever it is; or none of a connection that was
// made anew, and does not say whether it has done what an earlier attempt asked for.
var notReady = []string{"LOADING ", "BUSY ", "NOAUTH ", "WRONGPASS ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "READONLY ", "MOVED ", "ASK "}

// Unreachable tells whether an error says nothing about the call, only that there was no answer or that
// the server was not ready for any.
func Unreachable(err error) bool {
	var server redis.Error
	switch {
	case err == nil, errors.Is(err, ErrForbidden), errors.Is(err, ErrLayout), errors.Is(err, ErrTopicMode): // it has answered
		return false
	case !errors.As(err, &server):
		return true
	case redis.IsReadOnlyError(err): // also where a script of Redis 6.2 met it, whose error begins otherwise
		return true
	}
	return slices.ContainsFunc(notReady, func(prefix string) bool {
		return strings.HasPrefix(server.Error(), prefix)
	})
}
