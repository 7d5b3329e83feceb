package redisdelay

import "time"

// pace is how long the consumer takes for a message, by which what is claimed ahead is measured.
type pace struct {
	mean float64 // seconds; 0: not known
}

// mostAhead is how many messages are claimed ahead at most.
const mostAhead = 768

func (p *pace) observe(d time.Duration) {
	if p.mean == 0 {
		p.mean = d.Seconds()
	} else {
		p.mean += (d.Seconds() - p.mean) / 8
	}
}

// prefetch is how many messages the consumer gets done in the time that they may be hoarded.
func (p *pace) prefetch(inFlight int) int {
	if p.mean == 0 {
		return 0
	}
	return int(min(float64(inFlight)*hoard.Seconds()/p.mean, mostAhead))
}
