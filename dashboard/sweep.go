package dashboard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// The sweep reads all topics, a page at a time, again and again.
const (
	sweepPage  = 100
	sweepShare = 1000 // after a page it rests for so many times as long as Redis took
	sweepRest  = 2 * time.Second
	sweepLong  = time.Minute // the longest rest after a page
)

// sweep has what is known about all topics.
type sweep struct {
	admin *admin.Admin
	since time.Time
	first chan struct{} // closed when all topics were read once

	mu      sync.Mutex
	topics  map[string]*known // plain ones
	wholes  map[string]*whole // partitioned ones
	general []admin.Problem   // those of Redis, and of no single topic
	err     error             // of the last page
	ended   time.Time         // when all topics were read last; zero: not yet
	round   int
	ahead   time.Duration // by how much the server's clock is ahead of this machine's
}

// known is what is known about a topic.
type known struct {
	stats    admin.Stats
	problems []admin.Problem
	history  history
	recent   recent
	round    int // the last round that found it
}

// whole is what is known about a partitioned topic, besides what is known about its partitions.
type whole struct {
	partitions []string
	history    history
	recent     recent
}

// window is how far the readings are apart from which rates follow, at least.
const window = 10 * time.Second

// recent is the readings from which rates of now follow.
type recent struct {
	before admin.Stats // one or two windows old; of the beginning the first one
	next   admin.Stats // takes its place when it is a window old
}

func (r *recent) add(s admin.Stats) {
	switch {
	case r.before.Now.IsZero() || s.Now.Before(r.next.Now):
		r.before, r.next = s, s
	case s.Now.Sub(r.next.Now) >= window:
		r.before, r.next = r.next, s
	}
}

func newSweep(a *admin.Admin) *sweep {
	return &sweep{admin: a, since: time.Now(), first: make(chan struct{}), topics: map[string]*known{}, wholes: map[string]*whole{}}
}

// run reads topics until ctx ends. The first round has no rests. The cost of a page is the least of
// the last ones, because a page may also wait for a connection, or for a busy machine.
func (s *sweep) run(ctx context.Context) {
	cursor := ""
	var costs []time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		reading, cancel := context.WithTimeout(ctx, workFor)
		page, next, err := s.admin.Overview(reading, cursor, sweepPage)
		first := s.took(page, next == "", err)
		if err == nil {
			_, err = s.diagnose(reading, names(page))
			s.failed(err)
		}
		cancel()
		costs = append(costs, time.Since(began))
		costs = costs[max(0, len(costs)-8):]
		rest := min(max(slices.Min(costs)*sweepShare, sweepRest), sweepLong)
		if len(costs) == 1 {
			rest = sweepRest // most of it was for the connection
		}
		if first && err == nil && next != "" {
			rest = 0
		}
		if cursor = next; err != nil {
			cursor, rest = "", sweepRest
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
		}
	}
}

// took notes a page, and returns whether it is of the first round.
func (s *sweep) took(page []admin.Stats, last bool, err error) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first = s.ended.IsZero(); ctxOnly(err) {
		return first
	}
	if s.err = err; err != nil {
		return first
	}
	for _, stats := range page {
		s.note(stats).round = s.round
	}
	if last {
		for name, k := range s.topics {
			if k.round < s.round {
				delete(s.topics, name)
			}
		}
		s.fold()
		if s.round++; first {
			close(s.first)
		}
		s.ended = time.Now()
	}
	return first
}

// fold notes the partitioned topics after a round.
func (s *sweep) fold() {
	all := make([]admin.Stats, 0, len(s.topics))
	for _, k := range s.topics {
		all = append(all, k.stats)
	}
	found := map[string]bool{}
	for _, stats := range admin.Fold(all) {
		if stats.Partitions != nil {
			found[stats.Topic] = true
			s.noteWhole(stats)
		}
	}
	for name := range s.wholes {
		if !found[name] {
			delete(s.wholes, name)
		}
	}
}

func (s *sweep) noteWhole(stats admin.Stats) {
	w := s.wholes[stats.Topic]
	if w == nil {
		w = &whole{}
		s.wholes[stats.Topic] = w
	}
	w.partitions = names(stats.Partitions)
	if stats.Err == nil {
		w.history.add(sampleOf(stats))
		w.recent.add(stats)
	}
}

func ctxOnly(err error) bool { return err == context.Canceled }

// failed notes an error.
func (s *sweep) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ctxOnly(err) {
		s.err = err
	}
}

func names(page []admin.Stats) (names []string) {
	for _, s := range page {
		names = append(names, s.Topic)
	}
	return names
}

// observe notes what was read about a topic besides.
func (s *sweep) observe(stats admin.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stats.Partitions == nil {
		s.note(stats)
		return
	}
	for _, p := range stats.Partitions {
		s.note(p)
	}
	s.noteWhole(stats)
}

func (s *sweep) note(stats admin.Stats) *known {
	k := s.topics[stats.Topic]
	if k == nil {
		k = &known{round: s.round}
		s.topics[stats.Topic] = k
	}
	k.stats = stats
	if stats.Err == nil {
		s.ahead = time.Until(stats.Now)
		k.history.add(sampleOf(stats))
		k.recent.add(stats)
	}
	return k
}

// forget drops a topic that is gone.
func (s *sweep) forget(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.topics, topic)
	if w := s.wholes[topic]; w != nil {
		for _, name := range w.partitions {
			delete(s.topics, name)
		}
		delete(s.wholes, topic)
	}
}

// all returns what was read last about each topic, with the partitions of a topic in one, and the
// problems of no single topic.
func (s *sweep) all() (all []known, general []admin.Problem, ended time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	plain := make([]admin.Stats, 0, len(s.topics))
	for _, k := range s.topics {
		plain = append(plain, k.stats)
	}
	for _, stats := range admin.Fold(plain) {
		all = append(all, s.knownOf(stats))
	}
	return all, s.general, s.ended, s.err
}

// knownOf returns what was read about a topic, with the problems of all its partitions.
func (s *sweep) knownOf(stats admin.Stats) known {
	k := known{stats: stats, recent: s.recentOf(stats.Topic)}
	for _, name := range plainOf(stats) {
		if part := s.topics[name]; part != nil {
			k.problems = append(k.problems, part.problems...)
		}
	}
	admin.SortProblems(k.problems)
	return k
}

// plainOf returns the names of the partitions of a topic, or its own if it is a plain one.
func plainOf(stats admin.Stats) []string {
	if stats.Partitions == nil {
		return []string{stats.Topic}
	}
	return names(stats.Partitions)
}

// now returns the time by the server's clock, about.
func (s *sweep) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead)
}

// recentOf returns the readings of a topic from which its rates follow. s.mu is held.
func (s *sweep) recentOf(topic string) recent {
	if k := s.topics[topic]; k != nil {
		return k.recent
	}
	if w := s.wholes[topic]; w != nil {
		return w.recent
	}
	return recent{}
}

// rates returns what happened in a topic in the last seconds before a reading.
func (s *sweep) rates(stats admin.Stats) admin.Rates {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stats.RatesSince(s.recentOf(stats.Topic).before)
}

// past returns the samples of a topic.
func (s *sweep) past(topic string) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.topics[topic]; k != nil {
		return k.history.all()
	}
	if w := s.wholes[topic]; w != nil {
		return w.history.all()
	}
	return nil
}

// read returns the Stats of a topic, which are at most a moment old.
func (d *Dashboard) read(ctx context.Context, topic string) (admin.Stats, error) {
	return cached(ctx, &d.reads, "stats:"+topic, func(ctx context.Context) (admin.Stats, error) {
		stats, err := d.admin.Stats(ctx, topic)
		if err == nil {
			d.sweep.observe(stats)
		}
		return stats, err
	})
}
