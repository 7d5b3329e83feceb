// Package partitions names the plain topics of a partitioned topic, and finds the one of a key. The
// names are a wire format.
package partitions

import (
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// KeyMetadata is the metadata key of a message's partition key.
const KeyMetadata = "partition_key"

const (
	// Max is the largest number of partitions of a topic.
	Max = 384

	// MaxTopicLength is the maximum length of the name of a partitioned topic, in bytes. The names
	// of its plain topics are longer.
	MaxTopicLength = queue.MaxNameLength - 16
)

// Names returns the plain topics of a topic with so many partitions, partition 0 first.
func Names(topic string, partitions int) []string {
	names := make([]string, partitions)
	for i := range names {
		names[i] = Name(topic, i)
	}
	return names
}

// Name returns the name of a partition: <topic>-p<partition>-<salt>. The salt is the first number
// that puts the keys into the middle of the partition's cell. It takes 750 attempts on average.
func Name(topic string, partition int) string {
	const margin = 10 // slots at each end of a cell, because nodes may begin there
	at := cell(partition)
	first := at*queue.SlotCount/Max + margin
	last := (at+1)*queue.SlotCount/Max - margin
	begin := topic + "-p" + strconv.Itoa(partition) + "-"
	hash := queue.SlotHash(0).Add(begin)
	for salt := 0; ; salt++ {
		digits := strconv.Itoa(salt)
		if slot := hash.Add(digits).Slot(); first <= slot && slot <= last {
			return begin + digits
		}
	}
}

// Parse returns the partitioned topic that a plain topic belongs to, and its partition. ok is false
// if the name is not one that Name returns.
func Parse(plain string) (topic string, partition int, ok bool) {
	rest, _, found := cutLast(plain, "-")
	if !found {
		return "", 0, false
	}
	topic, number, found := cutLast(rest, "-p")
	partition, err := strconv.Atoi(number)
	if !found || err != nil || partition < 0 || partition >= Max || topic == "" || len(topic) > MaxTopicLength ||
		Name(topic, partition) != plain {
		return "", 0, false
	}
	return topic, partition, true
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// cell returns the cell of a partition. The slots are divided into Max cells of the same width.
// Each three partitions in a row are in different thirds of the slots, each six in different
// sixths, each twelve in different twelfths, and so on. So a multiple of 12 is spread evenly over
// 2, 3, 4, 6 or 12 nodes, and any number is spread nearly evenly.
func cell(partition int) int {
	width := Max / 3
	at := partition % 3 * width
	for rest := partition / 3; rest > 0; rest /= 2 {
		width /= 2
		at += rest % 2 * width
	}
	return at
}

// OfKey returns the partition of a key, by Google's jump consistent hash. If the number of
// partitions grows, keys move to new partitions only. The fewest possible move.
func OfKey(key string, partitions int) int {
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
