package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// DefaultPrefix begins all keys unless the user sets another prefix.
const DefaultPrefix = "redisdelay"

// MaxNameLength is the longest topic or consumer group, in bytes.
const MaxNameLength = 512

// CheckTopic returns an error that says why a topic cannot be used, or nil.
func CheckTopic(topic string) error {
	switch fault := FaultOfTopic(topic); {
	case fault == "":
		return nil
	case topic == "":
		return fmt.Errorf("topic %s", fault)
	default:
		return fmt.Errorf("topic %q... %s", topic[:32], fault)
	}
}

// FaultOfTopic returns the end of a sentence about a topic, or about the field that has its name:
// why it cannot be used. It returns "" for one that can be used.
func FaultOfTopic(topic string) string {
	switch {
	case topic == "":
		return "is empty; it needs a name"
	case len(topic) > MaxNameLength:
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(topic), MaxNameLength)
	}
	return ""
}

// CheckPrefix returns an error that says why a key prefix cannot be used, or nil.
func CheckPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("%q has a brace, which would change the hash tag of every key", prefix)
	}
	return nil
}

// notReady begins the errors of a server that takes no call for now, or none over a new connection.
// Such an error does not say whether the server has carried out an earlier attempt.
var notReady = []string{"LOADING ", "BUSY ", "NOAUTH ", "WRONGPASS ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "READONLY ", "MOVED ", "ASK "}

// Unreachable tells whether an error says nothing about the call, only that the server did not
// answer or was not ready.
func Unreachable(err error) bool {
	var server redis.Error
	switch {
	case err == nil, errors.Is(err, ErrForbidden), errors.Is(err, ErrLayout), errors.Is(err, ErrTopicMode):
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
