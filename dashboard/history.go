package dashboard

import (
	"math"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// sample is what a topic had counted at one time. Counters only grow, so the difference of two
// samples is what happened between them.
type sample struct {
	at                   time.Time
	published, delivered int
	waits                time.Duration // how late the next ready message is, of the group that is furthest behind
	late                 []uint32      // buckets of admin.Lateness, of all groups together; they wrap around
}

func sampleOf(s admin.Stats) sample {
	one := sample{at: s.Now, published: s.Counters.Published, waits: s.RatesSince(admin.Stats{}).Worst().Behind}
	var late admin.Lateness
	for _, g := range s.Groups {
		one.delivered += g.Counters.Delivered
		late = late.Plus(g.Lateness)
	}
	for _, bucket := range late.Buckets() {
		one.late = append(one.late, uint32(bucket.Count))
	}
	return one
}

// most is how many samples a history has at most, which is about 10 kB a topic. It is even.
const most = 96

// history is a list of samples. When it is full, every second one is dropped, and from then on
// samples are twice as far apart. So it always reaches back to the beginning.
type history struct {
	samples []sample
	apart   time.Duration
	last    sample // the newest, not yet in samples if it came too soon
}

func (h *history) add(s sample) {
	if n := len(h.samples); n > 0 && (s.delivered < h.samples[n-1].delivered || s.published < h.samples[n-1].published) {
		h.samples = nil // a group was removed, or the topic is another one
	}
	h.last = s
	if n := len(h.samples); n > 0 && s.at.Sub(h.samples[n-1].at) < h.apart {
		return
	}
	if h.samples = append(h.samples, s); len(h.samples) < most {
		return
	}
	for i := range most / 2 {
		h.samples[i] = h.samples[2*i+1]
	}
	h.samples = slices.Clip(h.samples[:most/2])
	h.apart = max(h.samples[most/2-1].at.Sub(h.samples[0].at)/(most/2), time.Second)
}

func (h *history) all() []sample {
	all := slices.Clone(h.samples)
	if n := len(all); n > 0 && h.last.at.After(all[n-1].at) {
		all = append(all, h.last)
	}
	return all
}

// series are figures over time, for charts.
type series struct {
	At                   []time.Time
	Published, Delivered []float64 // a second
	Half, Most           []float64 // 50 % and 99 % of the deliveries were at most so late, ms; NaN where there were none
	Waits                []float64 // how late the next ready message was that nobody had got, ms
}

// seriesOf returns the figures between samples.
func seriesOf(samples []sample) (s series) {
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		took := b.at.Sub(a.at).Seconds()
		if took <= 0 {
			continue
		}
		var between admin.Lateness
		for i, bucket := range between.Buckets() {
			between.Add(bucket.AtMost, int(b.late[i]-a.late[i]))
		}
		half, nearly := math.NaN(), math.NaN()
		if between.Count() > 0 {
			half, nearly = inMillis(between.Quantile(0.5)), inMillis(between.Quantile(0.99))
		}
		s.At = append(s.At, b.at)
		s.Published = append(s.Published, float64(b.published-a.published)/took)
		s.Delivered = append(s.Delivered, float64(b.delivered-a.delivered)/took)
		s.Half, s.Most = append(s.Half, half), append(s.Most, nearly)
		s.Waits = append(s.Waits, inMillis(b.waits))
	}
	return s
}

// inMillis returns a lateness for a chart. A quantile above all bounds is shown as two days.
func inMillis(d time.Duration) float64 {
	if d == math.MaxInt64 {
		d = 2 * longestLate
	}
	return float64(d) / float64(time.Millisecond)
}

// longestLate is the largest bound of a lateness.
var longestLate = func() time.Duration {
	buckets := admin.Lateness{}.Buckets()
	return buckets[len(buckets)-2].AtMost
}()

// late returns the figures of one line: how late deliveries were, or what nobody got while it was
// later than these.
func (s series) late() []float64 {
	line := make([]float64, len(s.Most))
	for i, most := range s.Most {
		line[i] = s.Waits[i]
		if most > line[i] {
			line[i] = most
		}
	}
	return line
}
