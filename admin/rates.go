package admin

import (
	"fmt"
	"time"
)

// Rates is what happened in a topic between two readings of its Stats.
type Rates struct {
	Over   time.Duration // between the readings, by the server's clock; 0: nothing is known
	In     float64       // messages published a second
	Out    float64       // deliveries a second, of all groups
	Late   Lateness      // of these deliveries
	Groups []GroupRates  // by name, as in Stats.Groups
}

// GroupRates is what happened in a consumer group between two readings.
type GroupRates struct {
	Group  string
	Out    float64       // deliveries a second
	Late   Lateness      // of these deliveries
	Growth float64       // ready messages that came and were not delivered, a second; negative: fewer are left
	Ready  int           // at the second reading
	Behind time.Duration // how late the next ready message is at the second reading; 0: none is late
}

// RatesSince returns what happened since an earlier reading of the same topic. A group that is not
// in the earlier one was made since. A counter that went back, because a group was made anew, is 0.
func (s Stats) RatesSince(before Stats) Rates {
	r := Rates{Over: max(s.Now.Sub(before.Now), 0)}
	if before.Now.IsZero() {
		r.Over = 0
	}
	rate := func(now, then int) float64 {
		if r.Over == 0 {
			return 0
		}
		return float64(now-then) / r.Over.Seconds()
	}
	was := map[string]GroupStats{}
	for _, g := range before.Groups {
		was[g.Group] = g
	}
	r.In = max(rate(s.Counters.Published, before.Counters.Published), 0)
	for _, g := range s.Groups {
		then := was[g.Group]
		one := GroupRates{Group: g.Group, Out: max(rate(g.Counters.Delivered, then.Counters.Delivered), 0), Late: g.Lateness.Since(then.Lateness),
			Growth: rate(g.Ready, then.Ready), Ready: g.Ready, Behind: g.Behind(s.Now)}
		if r.Over == 0 {
			one.Late = Lateness{}
		}
		r.Out += one.Out
		r.Late = r.Late.Plus(one.Late)
		r.Groups = append(r.Groups, one)
	}
	return r
}

// Worst returns the group that is furthest behind, the zero value if there is none.
func (r Rates) Worst() (worst GroupRates) {
	for _, g := range r.Groups {
		if g.Behind > worst.Behind || worst.Group == "" {
			worst = g
		}
	}
	return worst
}

// Behind returns how late the next ready message of the group is by now, 0 if none is ready. What
// was delivered counts in Lateness. So a pause, or consumers that hang, show here only.
func (g GroupStats) Behind(now time.Time) time.Duration {
	if g.Ready == 0 || g.OldestDue.IsZero() {
		return 0
	}
	return max(now.Sub(g.OldestDue), 0)
}

// little is how late the next ready message may be in a group that keeps up.
const little = time.Second

// noise is by how many messages a second a group grows that is steady, at most.
const noise = 0.05

// IsGrowing tells whether the group is behind, and more comes than it gets.
func (g GroupRates) IsGrowing() bool { return g.Behind >= little && g.Growth > noise }

// Trend says whether the group catches up: "" if it keeps up, "steady", "growing 3.4/s", or
// "shrinking 2.0/s, done in 5m0s".
func (g GroupRates) Trend() string {
	switch {
	case g.Behind < little:
		return ""
	case g.IsGrowing():
		return fmt.Sprintf("growing %.1f/s", g.Growth)
	case g.Growth < -noise:
		left := time.Duration(float64(g.Ready) / -g.Growth * float64(time.Second))
		return fmt.Sprintf("shrinking %.1f/s, done in %v", -g.Growth, round(left))
	}
	return "steady"
}
