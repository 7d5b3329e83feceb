package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

var (
	errNotRunning = errors.New("relay: it does not run")
	errNotYet     = errors.New("not subscribed yet")
)

// Ready returns nil if the relay runs and is subscribed to all its topics, and else an error that names those that it is not
// subscribed to, and says why. It is for probes, and asks nobody. Where all topics are relayed, those with a stream
// are not the relay's, and do not count.
func (r *Relay) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == 0 {
		return errNotRunning
	}
	var errs []error
	for _, topic := range slices.Sorted(maps.Keys(r.lacking)) {
		if err := r.lacking[topic]; r.config.Topics != nil || !errors.Is(err, redisdelay.ErrTopicMode) {
			errs = append(errs, fmt.Errorf("relay: topic %q: %w", topic, err))
		}
	}
	return errors.Join(errs...)
}

// begins counts a Run that begins, or, with -1, one that has ended.
func (r *Relay) begins(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs += n; r.runs == 0 {
		r.lacking = nil
	}
}

// subscribed notes that a topic is subscribed to, or why it is not.
func (r *Relay) subscribed(topic string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.lacking, topic)
		return
	}
	if r.lacking == nil {
		r.lacking = map[string]error{}
	}
	r.lacking[topic] = err
}
