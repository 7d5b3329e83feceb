package queue

import (
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// These limits are what one call moves into a stream at most. A call takes the server about a
// millisecond and a half.
const (
	streamBudget = 500     // messages
	streamBytes  = 4 << 20 // of all bodies together; the first may be larger
)

// StreamOptions are the settings of a topic with a stream.
type StreamOptions struct {
	MaxLen    int64         // about how many entries the stream keeps; 0: all
	Retention time.Duration // of dead messages; negative: for ever
	MaxDead   int           // dead messages that are kept at most; 0: no limit
}

// NewStreamTopic returns a handle on a topic whose due messages go into the Redis Stream of its
// name. The first use makes the topic one with a stream, unless it has messages, or groups, even in
// removal. NewStreamTopic does not talk to Redis.
func NewStreamTopic(client *servers.Client, prefix, name string, options StreamOptions) *Topic {
	t := NewTopic(client, prefix, name)
	t.stream = &options
	return t
}

// CheckStreamTopic returns an error that says why a topic with this name cannot have a stream, or
// nil. The stream and the topic's other keys must be in one slot of a Cluster. The same names are
// refused for a single server, so that a program can move to a Cluster.
func CheckStreamTopic(prefix, topic string) error {
	if topic == Registry(prefix) {
		return fmt.Errorf("%q is the key of the registry of topics; the stream would be the same key", topic)
	}
	if i := strings.IndexAny(topic, "%{}"); i >= 0 {
		return fmt.Errorf("%q has a %q; the name of a stream may have none of %%, { and }", topic, topic[i])
	}
	return nil
}

// openStreamCall returns a call that makes the topic one with a stream, or renews its options.
func (t *Topic) openStreamCall() *Call {
	options := GroupOptions{MaxDeliveries: -1, Retention: t.stream.Retention, MaxDead: t.stream.MaxDead}
	return t.NewCall(&openStreamScript, Target{}, "layout", Layout, "with_stream", StreamLayout, "fresh", Token(), "group", StreamGroup,
		"options", options.encode(), "maxlen", max(t.stream.MaxLen, 0))
}

// checkMode returns ErrTopicMode if the topic is not of the mode that the handle is for.
func (t *Topic) checkMode(groups *Groups) error {
	switch {
	case groups.Stream && t.stream == nil:
		t.Forget(groups) // the topic may have changed by the next call
		return fmt.Errorf("%w: the messages of topic %q go into a Redis Stream", ErrTopicMode, t.Name)
	case !groups.Stream && t.stream != nil:
		t.Forget(groups)
		return fmt.Errorf("%w: topic %q has groups or messages that are not for a Redis Stream", ErrTopicMode, t.Name)
	}
	return nil
}

// promoteStreamCall is PromoteCall for a topic with a stream.
func (t *Topic) promoteStreamCall(groups *Groups, address string, patience time.Duration) *Call {
	return t.NewCall(&promoteStreamScript, Target{Group: StreamGroup}, "stream", t.Name, "version", groups.Version, "me", address,
		"patience", patience, "budget", streamBudget, "bytes", streamBytes, "group", StreamGroup)
}
