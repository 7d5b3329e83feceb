package promredisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// Config configures a Collector.
type Config struct {
	// Admin reads the topics. Required.
	Admin *admin.Admin

	// Client reads the memory of the Redis servers. It is usually that of the Admin: a
	// *redis.Client, a *redis.ClusterClient, or a struct that embeds one. Default nil: the metrics
	// of memory are left out.
	Client redis.UniversalClient

	// Topics are the topics to export. Default nil: all under the Admin's KeyPrefix. Empty but not
	// nil means none. With names, a scrape still reads all topics. The name of a partitioned topic
	// means all its partitions. Each partition has metrics of its own.
	Topics []string

	// MaxGroups is how many pairs of a topic and a group are exported at most. A topic counts as
	// one more. Each group has about 50 series. The first ones in the order of their topics' names
	// are exported, and redisdelay_left_out counts the others. Default 2,000.
	MaxGroups int

	// MaxSchedules is how many recurring schedules are exported at most, of the topics that are
	// exported. Each has 5 series. The first ones in the order of topics and names are exported,
	// and redisdelay_schedules_left_out counts the others. Negative: none are read. Default 1,000.
	MaxSchedules int

	// Timeout is how long a scrape may take. Default 5s.
	Timeout time.Duration

	// OnError is called with each error of a scrape. redisdelay_up is 0 then. It must be safe for
	// concurrent use. Default nil: nothing is called.
	OnError func(error)
}

// Validate reports all faults of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, &redisdelay.FieldError{Field: field, Fault: fmt.Sprintf(format, args...)})
	}
	if c.Admin == nil {
		fault("Admin", "is required")
	}
	switch c.Client.(type) {
	case nil, single, cluster:
	default:
		fault("Client", "is a %T; want a *redis.Client or *redis.ClusterClient, or nil for no metrics of memory", c.Client)
	}
	for i, topic := range c.Topics {
		if topic == "" || len(topic) > redisdelay.MaxTopicLength {
			fault(fmt.Sprintf("Topics[%d]", i), "has %d bytes; want 1 to %d", len(topic), redisdelay.MaxTopicLength)
		}
	}
	if c.MaxGroups < 0 {
		fault("MaxGroups", "is %d; it has to be positive, or zero for the default", c.MaxGroups)
	}
	if c.Timeout < 0 {
		fault("Timeout", "is %v; it has to be positive, or zero for the default", c.Timeout)
	}
	return errors.Join(errs...)
}

// Collector is a prometheus.Collector. Each scrape reads Redis. It is safe for concurrent use;
// scrapes wait for one another.
type Collector struct {
	config Config

	scrape     sync.Mutex             // held by a scrape
	broadcasts map[string]*broadcasts // by topic, nil before the first scrape; scrape guards it
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector. Errors wrap redisdelay.ErrInvalidConfig.
func New(config Config) (*Collector, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.MaxGroups = cmp.Or(config.MaxGroups, 2000)
	config.MaxSchedules = cmp.Or(config.MaxSchedules, 1000)
	config.Timeout = cmp.Or(config.Timeout, 5*time.Second)
	config.Topics = slices.Clone(config.Topics)
	return &Collector{config: config}, nil
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range described {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.scrape.Lock()
	defer c.scrape.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), c.config.Timeout)
	defer cancel()
	began := time.Now()
	up := 1.0
	for _, err := range []error{c.topics(ctx, out), c.memory(ctx, out)} {
		if err != nil {
			up = 0
			if c.config.OnError != nil {
				c.config.OnError(err)
			}
		}
	}
	gauge(out, descUp, up)
	gauge(out, descScrape, time.Since(began).Seconds())
}

// wanted returns whether a topic is exported.
func (c *Collector) wanted(topic string) bool {
	return c.config.Topics == nil || slices.Contains(c.config.Topics, topic) ||
		slices.Contains(c.config.Topics, partition.DestinationTopic(topic, nil))
}

// topics exports all topics, unless one of the calls fails.
func (c *Collector) topics(ctx context.Context, out chan<- prometheus.Metric) error {
	var all []admin.Stats
	var unread []string
	var errs []error
	for cursor := ""; ; {
		page, next, err := c.config.Admin.Overview(ctx, cursor, 1000)
		if err != nil {
			return fmt.Errorf("read topics: %w", err)
		}
		for _, s := range page {
			switch {
			case !c.wanted(s.Topic), errors.Is(s.Err, admin.ErrNotFound):
			case s.Err != nil:
				unread = append(unread, s.Topic)
				errs = append(errs, fmt.Errorf("read topic %q: %w", s.Topic, s.Err))
			default:
				all = append(all, s)
			}
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b admin.Stats) int { return cmp.Compare(a.Topic, b.Topic) })
	all = slices.CompactFunc(all, func(a, b admin.Stats) bool { return a.Topic == b.Topic }) // a page may repeat one
	room, leftOut := c.config.MaxGroups, 0
	var recur []string
	counted := make(map[string]*broadcasts, len(all))
	for _, s := range all {
		var tallies map[string]tally
		s.Groups, tallies = merged(s.Groups)
		before, known := c.broadcasts[s.Topic]
		if !known && c.broadcasts != nil {
			before = &broadcasts{} // a new topic
		}
		counted[s.Topic] = before.count(tallies)
		if n := 1 + len(s.Groups); n > room {
			room, leftOut = 0, leftOut+n
			continue
		} else {
			room -= n
		}
		exportTopic(out, s, counted[s.Topic].sum)
		if s.Recurs {
			recur = append(recur, s.Topic)
		}
	}
	for _, topic := range unread { // it keeps its counts
		counted[topic] = c.broadcasts[topic]
	}
	c.broadcasts = counted
	gauge(out, descLeftOut, float64(leftOut))
	return errors.Join(append(errs, c.schedules(ctx, out, recur))...)
}

// schedules exports the recurring schedules of topics.
func (c *Collector) schedules(ctx context.Context, out chan<- prometheus.Metric, topics []string) error {
	if c.config.MaxSchedules < 0 {
		return nil
	}
	all, err := c.config.Admin.Schedules(ctx, topics...)
	if err != nil {
		return err
	}
	room, leftOut := c.config.MaxSchedules, 0
	var errs []error
	for _, t := range all {
		if t.Err != nil && !errors.Is(t.Err, admin.ErrNotFound) { // else it was removed meanwhile
			errs = append(errs, fmt.Errorf("read the schedules of topic %q: %w", t.Topic, t.Err))
		}
		exported := t.Schedules[:min(room, len(t.Schedules))]
		room, leftOut = room-len(exported), leftOut+len(t.Schedules)-len(exported)
		for _, s := range exported {
			exportSchedule(out, t.Now, s)
		}
	}
	gauge(out, descSchedulesLeftOut, float64(leftOut))
	return errors.Join(errs...)
}

// exportSchedule exports a recurring schedule. If its next occurrence is not in Redis, it exports
// when that should be due.
func exportSchedule(out chan<- prometheus.Metric, now time.Time, s admin.Schedule) {
	next := s.Next
	if next.IsZero() {
		next = s.Expected
	}
	instant(out, descScheduleLast, s.Last, s.Topic, s.Name)
	instant(out, descScheduleNext, next, s.Topic, s.Name)
	if s.Pause != nil {
		instant(out, descSchedulePaused, s.Pause.Since, s.Topic, s.Name)
	}
	gauge(out, descScheduleOverdue, age(now, s.Expected), s.Topic, s.Name)
	counter(out, descScheduleMissed, s.Missed, s.Topic, s.Name)
}

// broadcast is the label of all groups of Broadcast subscriptions.
const broadcast = "broadcast"

// merged returns the groups with those of Broadcast subscriptions as one, and what each of these
// has counted.
func merged(groups []admin.GroupStats) (out []admin.GroupStats, tallies map[string]tally) {
	sum := -1
	tallies = map[string]tally{}
	for _, g := range groups {
		if g.Group != broadcast && !strings.HasPrefix(g.Group, broadcast+":") {
			out = append(out, g)
			continue
		}
		tallies[g.Group] = tally{g.Counters, g.Lateness}
		g.Group = broadcast
		if sum < 0 {
			sum, out = len(out), append(out, g)
			continue
		}
		s := &out[sum]
		s.Ready += g.Ready
		s.InHand += g.InHand
		s.Retrying += g.Retrying
		s.Dead += g.Dead
		s.Suspects += g.Suspects
		s.OldestDue = earliest(s.OldestDue, g.OldestDue)
		s.NextRetry = earliest(s.NextRetry, g.NextRetry)
		s.OldestDead = earliest(s.OldestDead, g.OldestDead)
		s.LastSeen = earliest(s.LastSeen, g.LastSeen)
		s.LimitedSince = earliest(s.LimitedSince, g.LimitedSince)
		s.MaxLateness = max(s.MaxLateness, g.MaxLateness)
		s.Subscribed = s.Subscribed && g.Subscribed
		if s.Pause == nil || g.Pause != nil && g.Pause.Since.Before(s.Pause.Since) {
			s.Pause = g.Pause
		}
	}
	return out, tallies
}

// earliest returns the earlier time; zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// exportTopic exports a topic, and what its Broadcast groups have counted.
func exportTopic(out chan<- prometheus.Metric, s admin.Stats, broadcasted tally) {
	t := s.Topic
	gauge(out, descStored, float64(s.Messages), t)
	gauge(out, descWaiting, float64(s.Waiting), t)
	instant(out, descNextDue, s.NextDue, t)
	gauge(out, descOverdue, age(s.Now, s.NextDue), t)
	gauge(out, descScheduled, truth(s.Scheduled), t)
	gauge(out, descFailing, truth(s.Fault != ""), t)
	counter(out, descPublished, s.Counters.Published, t)
	counter(out, descReplaced, s.Counters.Replaced, t)
	counter(out, descLeftOutNames, s.Counters.LeftOut, t)
	counter(out, descRefused, s.Counters.RefusedFull, t)
	counter(out, descRefusedOccurrences, s.Counters.RefusedOccurrences, t)
	counter(out, descHistoryFailed, s.Counters.HistoryFailed, t, "")
	if s.Pause != nil {
		instant(out, descPaused, s.Pause.Since, t, "")
	}
	for _, g := range s.Groups {
		for _, state := range []struct {
			name string
			n    int
		}{{"ready", g.Ready}, {"in_hand", g.InHand}, {"retrying", g.Retrying}, {"dead", g.Dead}} {
			gauge(out, descMessages, float64(state.n), t, g.Group, state.name)
		}
		gauge(out, descOldest, age(s.Now, g.OldestDue), t, g.Group)
		gauge(out, descSuspects, float64(g.Suspects), t, g.Group)
		gauge(out, descSubscribed, truth(g.Subscribed), t, g.Group)
		gauge(out, descLimited, truth(!g.LimitedSince.IsZero()), t, g.Group)
		gauge(out, descMaxLateness, g.MaxLateness.Seconds(), t, g.Group)
		instant(out, descNextRetry, g.NextRetry, t, g.Group)
		instant(out, descOldestDead, g.OldestDead, t, g.Group)
		instant(out, descLastSeen, g.LastSeen, t, g.Group)
		if g.Pause != nil {
			instant(out, descPaused, g.Pause.Since, t, g.Group)
		}
		if g.Group == broadcast {
			exportTally(out, broadcasted, t, g.Group)
		} else {
			exportTally(out, tally{g.Counters, g.Lateness}, t, g.Group)
		}
	}
}

// memory exports the memory of each server.
func (c *Collector) memory(ctx context.Context, out chan<- prometheus.Metric) error {
	if c.config.Client == nil {
		return nil
	}
	var locked sync.Mutex
	read := func(ctx context.Context, client single) error {
		info, err := client.Info(ctx).Result()
		if err != nil {
			return fmt.Errorf("read the memory of Redis: %w", err)
		}
		locked.Lock()
		defer locked.Unlock()
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			number, err := strconv.Atoi(value)
			switch server := client.Options().Addr; {
			case err != nil:
			case name == "used_memory":
				gauge(out, descMemory, float64(number), server)
			case name == "maxmemory":
				gauge(out, descMemoryLimit, float64(number), server)
			case name == "evicted_keys":
				counter(out, descEvicted, number, server)
			}
		}
		return nil
	}
	switch client := c.config.Client.(type) {
	case cluster:
		return client.ForEachMaster(ctx, func(ctx context.Context, client *redis.Client) error { return read(ctx, client) })
	case single:
		return read(ctx, client)
	}
	return nil // New has refused it
}

// single is a *redis.Client, or a struct that embeds one.
type single interface {
	Info(ctx context.Context, sections ...string) *redis.StringCmd
	Options() *redis.Options
}

// cluster is a *redis.ClusterClient, or a struct that embeds one.
type cluster interface {
	ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
}

// age is how long ago t was, at least 0; zero is none.
func age(now, t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, now.Sub(t).Seconds())
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, valid(labels)...)
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, value int, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), valid(labels)...)
}

// seconds exports a time that only grows.
func seconds(out chan<- prometheus.Metric, d *prometheus.Desc, value time.Duration, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value.Seconds(), valid(labels)...)
}

// instant exports a time as Unix seconds. The zero time has no series.
func instant(out chan<- prometheus.Metric, d *prometheus.Desc, t time.Time, labels ...string) {
	if !t.IsZero() {
		gauge(out, d, float64(t.UnixMilli())/1000, labels...)
	}
}

// valid returns the labels in UTF-8, which names in Redis need not be. A byte that is not UTF-8
// becomes the replacement character and its number. So do the three bytes of a replacement
// character that is in the name itself, so that different names stay different.
func valid(labels []string) []string {
	for i, label := range labels {
		if utf8.ValidString(label) && !strings.ContainsRune(label, utf8.RuneError) {
			continue
		}
		var b strings.Builder
		for at, size := 0, 0; at < len(label); at += size {
			r, n := utf8.DecodeRuneInString(label[at:])
			if size = n; r != utf8.RuneError {
				b.WriteRune(r)
				continue
			}
			for _, c := range []byte(label[at : at+n]) {
				fmt.Fprintf(&b, "%c%02x", utf8.RuneError, c)
			}
		}
		labels[i] = b.String()
	}
	return labels
}
