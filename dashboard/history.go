package dashboard

import (
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// sample is what a topic had counted at one time. Counters only grow, so the difference of two
// samples is what happened between them.
type sample struct {
	at                           time.Time
	delivered                    int
	late                         time.Duration // all latenesses together
	pending, ready, inHand, dead int
}

func sampleOf(s admin.Stats) sample {
	one := sample{at: s.Now, pending: s.Pending}
	for _, g := range s.Groups {
		one.delivered += g.Delivered
		one.late += g.MeanLateness * time.Duration(g.Delivered)
		one.ready += g.Ready
		one.inHand += g.InHand
		one.dead += g.Dead
	}
	return one
}

// most is how many samples a history has at most. It is even.
const most = 120

// history is a list of samples. When it is full, every second one is dropped, and from then on
// samples are twice as far apart. So it always reaches back to the beginning.
type history struct {
	samples []sample
	apart   time.Duration
	last    sample // the newest, not yet in samples if it came too soon
}

func (h *history) add(s sample) {
	if n := len(h.samples); n > 0 && s.delivered < h.samples[n-1].delivered {
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
	At          []time.Time
	Rate        []float64 // deliveries a second
	Late        []float64 // mean lateness of them, ms; the last known where there were none
	Ready, Dead []int
}

// seriesOf returns the figures between samples.
func seriesOf(samples []sample) (s series) {
	late := 0.0
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		n, took := b.delivered-a.delivered, b.at.Sub(a.at).Seconds()
		if took <= 0 {
			continue
		}
		if n > 0 {
			late = max(float64(b.late-a.late)/float64(n)/float64(time.Millisecond), 0)
		}
		s.At = append(s.At, b.at)
		s.Rate = append(s.Rate, float64(n)/took)
		s.Late = append(s.Late, late)
		s.Ready = append(s.Ready, b.ready)
		s.Dead = append(s.Dead, b.dead)
	}
	return s
}
