package partition

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// refreshAfter is how old a number of partitions may be that a Publisher uses. What admin
	// allows for a publisher to follow is several times as long.
	refreshAfter = 2 * time.Second

	// followEvery is how often a Subscriber looks for another number of partitions.
	followEvery = 15 * time.Second

	// askFor is how long Redis may take to tell it.
	askFor = 2 * time.Second
)

// numbers tells how many partitions each topic has: the configured number, or that in Redis.
type numbers struct {
	fixed   int // 0: that in Redis
	ask     func(ctx context.Context, topic string) (queue.Partitioning, error)
	refresh time.Duration
	logger  watermill.LoggerAdapter // for what ask fails with while a number is known

	mu    sync.Mutex
	known map[string]*number // by topic
}

// number is what was read last about a topic.
type number struct {
	queue.Partitioning
	read   time.Time // or when the last try failed
	asking bool      // a call reads it anew
}

// of returns the number of a topic. One that was read lately is used again. One call reads it anew,
// and others use the old one for a moment. If Redis does not tell it, the old one stays in use
// until the next try, so that a node that fails stops only its own partitions.
func (n *numbers) of(topic string) (queue.Partitioning, error) {
	if n.fixed != 0 {
		return queue.Partitioning{Count: n.fixed}, nil
	}
	n.mu.Lock()
	known := n.known[topic]
	if known != nil {
		age := time.Since(known.read)
		if age < n.refresh || known.asking && age < n.refresh+askFor {
			defer n.mu.Unlock()
			return known.Partitioning, nil
		}
		known.asking = true
	}
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	began := time.Now()
	read, err := n.ask(ctx, topic)
	if err == nil && read.Count == 0 {
		err = field.Invalid("Partitions", "is 0, and no number of partitions of topic %q is in Redis: see redisdelay partitions set", topic)
	}
	if err != nil && known == nil {
		return read, err
	}
	if err != nil {
		n.logger.Error("Cannot read the number of partitions, using the last one", err,
			watermill.LogFields{"topic": topic, "partitions": known.Count})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch now := n.known[topic]; {
	case now != known: // another call read it meanwhile
		return now.Partitioning, nil
	case err != nil:
		read, began = known.Partitioning, time.Now()
	case n.known == nil:
		n.known = map[string]*number{}
	}
	n.known[topic] = &number{Partitioning: read, read: began}
	return read, nil
}
