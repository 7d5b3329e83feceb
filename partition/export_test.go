package partition

// OfKey is where TopicOf and a Publisher put a key.
func OfKey(key string, partitions int) int { return ofKey(key, partitions) }
