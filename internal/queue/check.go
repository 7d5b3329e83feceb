package queue

import (
	"fmt"
	"strings"
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
