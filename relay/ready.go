package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

var (
	errNotRunning = errors.New("relay is not running")
	errNotYet     = errors.New("not subscribed yet")
	errNotRead    = errors.New("not read yet")
)

// registry stands for the registry of topics in run.missing. No topic has this name.
const registry = ""

// Ready returns nil if the relay runs and is subscribed to all its topics. Otherwise the error
// names each missing topic and the reason. It does no I/O, and is meant for probes. If all topics
// are relayed, the relay must have read the registry of topics, and topics with a stream do not
// count. Ready knows about Run only; with AddHandlers use the router's IsRunning.
func (r *Relay) Ready() error {
	r.mu.Lock()
	running := len(r.runs) > 0
	missing := map[string]error{}
	for run := range r.runs {
		maps.Copy(missing, run.missing)
	}
	r.mu.Unlock()
	if !running {
		return errNotRunning
	}
	var errs []error
	for _, topic := range slices.Sorted(maps.Keys(missing)) {
		what := fmt.Sprintf("topic %q", topic)
		if topic == registry {
			what = "registry of topics"
		}
		errs = append(errs, fmt.Errorf("relay: %s: %w", what, missing[topic]))
	}
	return errors.Join(errs...)
}

// begin adds the run to those that Ready checks. It is not yet subscribed to any topic.
func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range r.config.Topics {
		r.missing[topic] = errNotYet
	}
	if r.config.Topics == nil {
		r.missing[registry] = errNotRead
	}
	if r.runs == nil {
		r.runs = map[*run]struct{}{}
	}
	r.runs[r] = struct{}{}
}

// end removes the run from those that Ready checks.
func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, r)
}

// subscribed records that a topic is subscribed to, or the error why it is not.
func (r *run) subscribed(topic string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.missing, topic)
	} else {
		r.missing[topic] = err
	}
}
