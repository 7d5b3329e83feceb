package partition

import (
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
)

// MaxPartitions is the largest number of partitions of a topic.
const MaxPartitions = partitions.Max

// MaxTopicLength is the maximum length of the name of a partitioned topic, in bytes. The names of
// its plain topics are longer.
const MaxTopicLength = partitions.MaxTopicLength

// Topics returns the names of the plain topics that a topic with so many partitions consists of,
// partition 0 first. Package admin and the tool take these names.
//
// The name of a partition does not depend on the number of partitions. So a topic that grows keeps
// the plain topics that it has, and gets others besides. Errors wrap redisdelay.ErrInvalidTopic or
// redisdelay.ErrInvalidConfig.
func Topics(topic string, n int) ([]string, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if err := checkPartitions(n); err != nil {
		return nil, err
	}
	return partitions.Names(topic, n), nil
}

// TopicOf returns the name of the plain topic that has the messages with a partition key. A message
// without one is with its delay ID as a key. Errors are those of Topics.
func TopicOf(topic string, n int, key string) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	if err := checkPartitions(n); err != nil {
		return "", err
	}
	return partitions.Name(topic, partitions.OfKey(key, n)), nil
}

// Parse returns the partitioned topic that a plain topic belongs to, and its partition. ok is false
// if the name is not one that Topics returns.
func Parse(plain string) (topic string, partition int, ok bool) {
	return partitions.Parse(plain)
}

// DestinationTopic returns the partitioned topic of a plain topic, or the name itself if it is
// none. It is a DestinationTopic for package relay: all partitions go to one topic there.
func DestinationTopic(plain string, _ *message.Message) string {
	if topic, known := parsed.Load(plain); known {
		return topic.(string)
	}
	topic, _, ok := Parse(plain)
	if !ok {
		return plain
	}
	parsed.Store(plain, topic)
	return topic
}

// parsed has the partitioned topic of each plain topic that DestinationTopic was asked for. A
// process has each of these topics in its memory anyhow.
var parsed sync.Map

func checkTopic(topic string) error {
	switch {
	case topic == "":
		return fmt.Errorf("%w: topic is empty; it needs a name", redisdelay.ErrInvalidTopic)
	case len(topic) > MaxTopicLength:
		return fmt.Errorf("%w: topic %q... has %d bytes; at most %d are allowed with partitions",
			redisdelay.ErrInvalidTopic, topic[:32], len(topic), MaxTopicLength)
	}
	return nil
}

// names remembers the plain topics of each topic. Their names do not depend on how many there are.
type names struct {
	mu    sync.Mutex
	known map[string][]string
}

// of returns the first plain topics of a topic.
func (n *names) of(topic string, most int) ([]string, error) {
	n.mu.Lock()
	known := n.known[topic]
	n.mu.Unlock()
	if len(known) >= most {
		return known[:most:most], nil
	}
	found, err := Topics(topic, most)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[string][]string{}
	}
	n.known[topic] = found
	return found, nil
}
