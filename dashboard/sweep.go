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
	sweepShare = 1000            // after a page it rests for so many times as long as Redis took
	sweepRest  = 2 * time.Second // the shortest rest after a page, and after an error
	sweepLong  = time.Minute     // the longest
	sweepHaste = 100             // see sweep.apart
)

// sweep has what is known about all topics.
type sweep struct {
	admin *admin.Admin
	since time.Time
	least time.Duration // the shortest rest after a page
	apart time.Duration // hasty rounds are so many times as far apart as they take
	asked chan struct{} // somebody wants a round without rests, a hasty one

	mu      sync.Mutex
	topics  map[string]*known // plain ones
	wholes  map[string]*whole // partitioned ones
	general []admin.Problem   // those of Redis, and of no single topic
	err     error             // of the last page
	ended   time.Time         // when all topics were read last; zero: not yet
	free    time.Time         // when a hasty round may begin
	ends    chan struct{}     // closed when a hasty round ends
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
	return &sweep{admin: a, since: time.Now(), least: sweepRest, apart: sweepHaste,
		asked: make(chan struct{}, 1), ends: make(chan struct{}), topics: map[string]*known{}, wholes: map[string]*whole{}}
}

// ask asks for a hasty round, which begins as soon as one may. It returns a channel that is closed
// at its end, or nil if none begins now.
func (s *sweep) ask() <-chan struct{} {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.free) {
		return nil
	}
	return s.ends
}

// run reads topics until ctx ends. The first round is a hasty one. The cost of a page is the least
// of the last ones, because a page may also wait for a connection, or for a busy machine.
func (s *sweep) run(ctx context.Context) {
	cursor, first, haste := "", true, true
	var costs []time.Duration
	var round time.Duration // how long the pages of the round took
	for ctx.Err() == nil {
		if cursor == "" {
			round = 0
		}
		began := time.Now()
		reading, cancel := context.WithTimeout(ctx, workFor)
		page, next, err := s.admin.Overview(reading, cursor, sweepPage)
		s.took(page, cursor == "", err)
		if err == nil {
			_, err = s.diagnose(reading, names(page))
			s.failed(err)
		}
		cancel()
		costs = append(costs, time.Since(began))
		costs = costs[max(0, len(costs)-8):]
		rest := max(min(slices.Min(costs)*sweepShare, sweepLong), s.least)
		if len(costs) == 1 {
			rest = s.least // most of it was for the connection
		} else {
			round += costs[len(costs)-1]
		}
		switch cursor = next; {
		case err != nil:
			cursor, rest, haste = "", sweepRest, first
		case next == "":
			s.end(haste, round)
			first, haste = false, false
		case haste:
			continue
		}
		if s.rest(ctx, rest) {
			cursor, haste = "", true
		}
	}
}

// rest rests, and returns early and true when a hasty round is asked for and may begin.
func (s *sweep) rest(ctx context.Context, d time.Duration) bool {
	s.mu.Lock()
	free := time.After(time.Until(s.free))
	s.mu.Unlock()
	rested := time.After(d)
	var asked chan struct{} // nil until a round may begin
	for {
		select {
		case <-free:
			asked = s.asked
		case <-asked:
			return true
		case <-rested:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// took notes a page, which is the first of a round or another one.
func (s *sweep) took(page []admin.Stats, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctxOnly(err) {
		return
	}
	if first {
		s.round++
	}
	if s.err = err; err != nil {
		return
	}
	for _, stats := range page {
		s.note(stats).round = s.round
	}
}

// end notes that all topics were read, and how long that took.
func (s *sweep) end(hasty bool, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.topics {
		if k.round < s.round {
			delete(s.topics, name)
		}
	}
	s.fold()
	s.ended = time.Now()
	if hasty {
		s.free = s.ended.Add(s.apart * took)
		close(s.ends)
		s.ends = make(chan struct{})
	}
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

// read returns when all topics were read last, or the zero time.
func (s *sweep) read() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
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
