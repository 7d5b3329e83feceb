package partition

import "github.com/redisdelay/watermill-redisdelay/internal/partitions"

// OfKey is where TopicOf and a Publisher put a key.
func OfKey(key string, n int) int { return partitions.OfKey(key, n) }
