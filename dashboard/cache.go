package dashboard

import (
	"context"
	"sync"
	"time"
)

// Freshness of what is read from Redis.
const (
	freshFor    = time.Second      // at least so long a value is used again
	stalest     = 10 * time.Second // and at most so long
	share       = 1000             // a value is used so many times as long as it took to read
	unusedFor   = time.Minute      // a value that nobody wanted for so long is forgotten
	mostEntries = 2000
)

// cache keeps what was read from Redis for a moment. So each thing is read once, however many
// browsers show it. The zero value is ready.
type cache struct {
	mu      sync.Mutex
	entries map[string]*entry
}

// entry is one thing. The turn is taken while it is read or looked at.
type entry struct {
	turn  chan struct{}
	used  time.Time // guarded by cache.mu
	value any
	err   error
	until time.Time // when it is to be read anew
}

// cached returns what read returned lately for the key, or calls it. The read goes on if the
// context ends, because others may wait for it too.
func cached[T any](ctx context.Context, c *cache, key string, read func(context.Context) (T, error)) (value T, err error) {
	e := c.entry(key)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return value, ctx.Err()
	}
	if began := time.Now(); began.After(e.until) {
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), workFor)
		defer cancel()
		e.value, e.err = read(reading)
		took := time.Since(began)
		e.until = time.Now().Add(min(max(freshFor-50*time.Millisecond, took*share), stalest))
	}
	value, _ = e.value.(T)
	return value, e.err
}

func (c *cache) entry(key string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	e := c.entries[key]
	if e == nil {
		for key, old := range c.entries {
			if len(c.entries) >= mostEntries || now.Sub(old.used) > unusedFor {
				delete(c.entries, key)
			}
		}
		if c.entries == nil {
			c.entries = map[string]*entry{}
		}
		e = &entry{turn: make(chan struct{}, 1)}
		c.entries[key] = e
	}
	e.used = now
	return e
}

// forget has everything be read anew, after a change.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
}
