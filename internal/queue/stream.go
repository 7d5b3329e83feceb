package queue

import (
	"fmt"
	"strings"
	"time"
)

// What one call moves into a stream at most: about a millisecond and a half of the server's time.
const (
	streamBudget = 500     // messages
	streamBytes  = 4 << 20 // of bodies, but for the first
)

// StreamOptions is what the pipeline knows of a topic with a stream.
type StreamOptions struct {
	MaxLen    int64         // entries that the stream keeps, about; 0: all
	Retention time.Duration // of dead messages; negative: for ever
}

// NewStreamTopic returns a handle on a topic whose due messages go into the Redis Stream of its name. The first use
// makes it one, unless it has groups or messages, or groups whose removal is under way. The handle does not talk to
// Redis yet.
func NewStreamTopic(client *Client, prefix, name string, options StreamOptions) *Topic {
	t := NewTopic(client, prefix, name)
	t.stream = &options
	return t
}

// CheckStreamTopic tells why a topic's name cannot be that of a stream, or returns nil. The stream and the
// topic's own keys have to be in one slot of a cluster. That the name may be used on a single server only would
// be a trap, so it is the same there. Of all keys that have no braces, one is taken.
func CheckStreamTopic(prefix, topic string) error {
	if topic == Registry(prefix) {
		return fmt.Errorf("%q is the key of the registry of topics; the stream would be the same key", topic)
	}
	if i := strings.IndexAny(topic, "%{}"); i >= 0 {
		return fmt.Errorf("%q has a %q; the name of a stream may have none of %%, { and }", topic, topic[i])
	}
	return nil
}

// openStreamCall makes a call that makes the topic one with a stream, or renews its options.
func (t *Topic) openStreamCall() *Call {
	k := t.keys
	return &Call{
		script: &openStreamScript,
		keys:   []string{k.Meta(), k.Groups(), k.Messages(), k.Pending(), k.Scheduler(), k.Idle()},
		args: []any{Layout, StreamLayout, Token(), StreamGroup,
			GroupOptions{MaxDeliveries: -1, Retention: t.stream.Retention}.encode(), max(t.stream.MaxLen, 0)},
	}
}

// checkMode tells whether the topic is of the mode that the handle is for.
func (t *Topic) checkMode(groups *Groups) error {
	switch {
	case groups.Stream && t.stream == nil:
		t.Forget(groups) // it may be another topic by the next call
		return fmt.Errorf("%w: the messages of topic %q go into a Redis Stream", ErrTopicMode, t.Name)
	case !groups.Stream && t.stream != nil:
		t.Forget(groups)
		return fmt.Errorf("%w: topic %q has groups or messages that are not for a Redis Stream", ErrTopicMode, t.Name)
	}
	return nil
}

// promoteStreamCall is PromoteCall for a topic with a stream.
func (t *Topic) promoteStreamCall(groups *Groups, address string, patience time.Duration) *Call {
	k, g := t.keys, StreamGroup
	return &Call{
		script: &promoteStreamScript,
		keys: []string{k.Meta(), k.Groups(), k.Messages(), k.Options(), k.Pending(), k.Scheduler(), k.Names(), k.Taken(),
			k.Paused(), t.Name, k.Retry(g), k.Dead(g), k.Deliveries(g), k.Stats(g)},
		args: []any{groups.Version, address, millis(patience), streamBudget, streamBytes, g},
	}
}
