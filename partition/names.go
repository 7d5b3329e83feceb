package partition

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// MaxPartitions is the largest number of partitions of a topic.
const MaxPartitions = 384

// MaxTopicLength is the maximum length of the name of a partitioned topic, in bytes. The names of
// its plain topics are longer.
const MaxTopicLength = redisdelay.MaxTopicLength - 16

// Topics returns the names of the plain topics that a topic with so many partitions consists of,
// partition 0 first. Package admin and the tool take these names.
//
// The name of a partition does not depend on the number of partitions. So a topic that grows keeps
// the plain topics that it has, and gets others besides. Errors wrap redisdelay.ErrInvalidTopic or
// redisdelay.ErrInvalidConfig.
func Topics(topic string, partitions int) ([]string, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if err := checkPartitions(partitions); err != nil {
		return nil, err
	}
	names := make([]string, partitions)
	for i := range names {
		names[i] = name(topic, i)
	}
	return names, nil
}

// TopicOf returns the name of the plain topic that has the messages with a partition key. A message
// without one is with its delay ID as a key. Errors are those of Topics.
func TopicOf(topic string, partitions int, key string) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	if err := checkPartitions(partitions); err != nil {
		return "", err
	}
	return name(topic, ofKey(key, partitions)), nil
}

// Parse returns the partitioned topic that a plain topic belongs to, and its partition. ok is false
// if the name is not one that Topics returns.
func Parse(plain string) (topic string, partition int, ok bool) {
	rest, _, found := cutLast(plain, "-")
	if !found {
		return "", 0, false
	}
	topic, number, found := cutLast(rest, "-p")
	partition, err := strconv.Atoi(number)
	if !found || err != nil || partition < 0 || partition >= MaxPartitions || checkTopic(topic) != nil || name(topic, partition) != plain {
		return "", 0, false
	}
	return topic, partition, true
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

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

func checkTopic(topic string) error {
	switch {
	case topic == "":
		return fmt.Errorf("%w: the topic is empty", redisdelay.ErrInvalidTopic)
	case len(topic) > MaxTopicLength:
		return fmt.Errorf("%w: topic %q... has %d bytes; at most %d are allowed with partitions",
			redisdelay.ErrInvalidTopic, topic[:32], len(topic), MaxTopicLength)
	}
	return nil
}

// name returns the name of a partition: <topic>-p<partition>-<salt>. The salt is the first number
// that puts the keys into the middle of the partition's cell. It takes 750 attempts on average.
func name(topic string, partition int) string {
	const margin = 10 // slots at each end of a cell, because nodes may begin there
	at := cell(partition)
	first := at*queue.SlotCount/MaxPartitions + margin
	last := (at+1)*queue.SlotCount/MaxPartitions - margin
	begin := topic + "-p" + strconv.Itoa(partition) + "-"
	hash := queue.SlotHash(0).Add(begin)
	for salt := 0; ; salt++ {
		digits := strconv.Itoa(salt)
		if slot := hash.Add(digits).Slot(); first <= slot && slot <= last {
			return begin + digits
		}
	}
}

// cell returns the cell of a partition. The slots are divided into MaxPartitions cells of the same
// width. Each three partitions in a row are in different thirds of the slots, each six in different
// sixths, each twelve in different twelfths, and so on. So a multiple of 12 is spread evenly over
// 2, 3, 4, 6 or 12 nodes, and any number is spread nearly evenly.
func cell(partition int) int {
	width := MaxPartitions / 3
	at := partition % 3 * width
	for rest := partition / 3; rest > 0; rest /= 2 {
		width /= 2
		at += rest % 2 * width
	}
	return at
}

// ofKey returns the partition of a key, by Google's jump consistent hash. If the number of
// partitions grows, keys move to new partitions only. The fewest possible move.
func ofKey(key string, partitions int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	state := h.Sum64()
	partition, next := 0, 0
	for next < partitions {
		partition = next
		state = state*2862933555777941757 + 1
		next = int(float64(partition+1) * (float64(1<<31) / float64(state>>33+1)))
	}
	return partition
}

// names remembers the plain topics of each topic.
type names struct {
	partitions int
	mu         sync.Mutex
	known      map[string][]string
}

func newNames(partitions int) *names {
	return &names{partitions: partitions, known: map[string][]string{}}
}

// of is Topics.
func (n *names) of(topic string) ([]string, error) {
	n.mu.Lock()
	known := n.known[topic]
	n.mu.Unlock()
	if known != nil {
		return known, nil
	}
	found, err := Topics(topic, n.partitions)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[topic] = found
	return found, nil
}
