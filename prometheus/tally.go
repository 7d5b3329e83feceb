package promredisdelay

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// tally is all that a group counts.
type tally struct {
	admin.GroupCounters
	admin.Lateness
}

// figures returns all counters of a tally that are numbers, in a fixed order.
func (t *tally) figures() []*int {
	c := &t.GroupCounters
	return []*int{&c.Delivered, &c.Acked, &c.Nacked, &c.Retried, &c.Dropped, &c.Skipped, &c.Expired, &c.Disowned, &c.Suspects, &c.LeaseLost, &c.GivenUp, &c.DeadPurged, &c.Limited, &c.HistoryFailed,
		&c.Dead.Deliveries, &c.Dead.Lease, &c.Dead.Asked, &c.Dead.Late, &c.Dead.Unmarshal, &c.Dead.Killed}
}

// grow adds what a group has counted between two tallies.
func (t *tally) grow(before, after tally) {
	from, to := before.figures(), after.figures()
	for i, n := range t.figures() {
		*n += max(0, *to[i]-*from[i])
	}
	t.LimitedFor += max(0, after.LimitedFor-before.LimitedFor)
	t.Lateness = t.Lateness.Plus(after.Lateness.Since(before.Lateness))
}

// broadcasts is what the Broadcast groups of a topic have counted since the Collector first saw the
// topic. Groups come and go, so their sum would fall, and Prometheus takes a fall for a reset.
type broadcasts struct {
	sum  tally
	seen map[string]tally // by group, at the last scrape
}

// count counts the groups of a scrape. b is nil at the Collector's first scrape of all topics, when
// it cannot tell what is new.
func (b *broadcasts) count(groups map[string]tally) *broadcasts {
	next := &broadcasts{seen: groups}
	if b != nil {
		next.sum = b.sum
		for name, now := range groups {
			next.sum.grow(b.seen[name], now)
		}
	}
	return next
}

func exportTally(out chan<- prometheus.Metric, c tally, topic, group string) {
	counter(out, descDelivered, c.Delivered, topic, group)
	counter(out, descAcked, c.Acked, topic, group)
	counter(out, descNacked, c.Nacked, topic, group)
	counter(out, descRetried, c.Retried, topic, group)
	counter(out, descDropped, c.Dropped, topic, group)
	counter(out, descSkipped, c.Skipped, topic, group)
	counter(out, descExpired, c.Expired, topic, group)
	counter(out, descDisowned, c.Disowned, topic, group)
	counter(out, descSuspected, c.Suspects, topic, group)
	counter(out, descLeaseLost, c.LeaseLost, topic, group)
	counter(out, descGivenUp, c.GivenUp, topic, group)
	counter(out, descStopped, c.Limited, topic, group)
	seconds(out, descHeldBack, c.LimitedFor, topic, group)
	counter(out, descDead, c.Dead.Deliveries, topic, group, "deliveries")
	counter(out, descDead, c.Dead.Lease, topic, group, "lease")
	counter(out, descDead, c.Dead.Asked, topic, group, "asked")
	counter(out, descDead, c.Dead.Late, topic, group, "late")
	counter(out, descDead, c.Dead.Unmarshal, topic, group, "unmarshal")
	counter(out, descDead, c.Dead.Killed, topic, group, "killed")
	counter(out, descDeadPurged, c.DeadPurged, topic, group)
	counter(out, descHistoryFailed, c.HistoryFailed, topic, group)
	histogram(out, descLateness, c.Lateness, topic, group)
}

// histogram exports lateness. Redis has no sum of it, so each delivery counts as the lower bound of
// its bucket.
func histogram(out chan<- prometheus.Metric, d *prometheus.Desc, l admin.Lateness, labels ...string) {
	buckets, count, sum := map[float64]uint64{}, 0, 0.0
	var below time.Duration
	for _, b := range l.Buckets() {
		count += b.Count
		sum += float64(b.Count) * below.Seconds()
		if below = b.AtMost; below < math.MaxInt64 {
			buckets[below.Seconds()] = uint64(count)
		}
	}
	out <- prometheus.MustNewConstHistogram(d, uint64(count), sum, buckets, valid(labels)...)
}
