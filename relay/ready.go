package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

var (
	errNotRunning = errors.New("relay: it does not run")
	errNotYet     = errors.New("not subscribed yet")
	errNotRead    = errors.New("not read yet")
)

// registry stands for the registry of topics among topics, none of which has that name.
const registry = ""

// Ready returns nil if the relay runs and is subscribed to all its topics, and else an error that names those that it is not
// subscribed to, and says why. It is for probes, and asks nobody. Where all topics are relayed, those with a stream
// are not the relay's, and do not count, and it has to have read which topics there are. It knows of Run only: with AddHandlers
// ask the router, by IsRunning.
func (r *Relay) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.runs) == 0 {
		return errNotRunning
	}
	var errs []error
	for run := range r.runs {
		for _, topic := range slices.Sorted(maps.Keys(run.lacking)) {
			what := fmt.Sprintf("topic %q", topic)
			if topic == registry {
				what = "registry of topics"
			}
			errs = append(errs, fmt.Errorf("relay: %s: %w", what, run.lacking[topic]))
		}
	}
	return errors.Join(errs...)
}

// begin has Ready ask for the run, which has all its topics to subscribe to yet.
func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range r.config.Topics {
		r.lacking[topic] = errNotYet
	}
	if r.config.Topics == nil {
		r.lacking[registry] = errNotRead
	}
	if r.runs == nil {
		r.runs = map[*run]struct{}{}
	}
	r.runs[r] = struct{}{}
}

func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, r)
}

// subscribed notes that a topic is subscribed to, or why it is not.
func (r *run) subscribed(topic string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.lacking, topic)
	} else {
		r.lacking[topic] = err
	}
}
