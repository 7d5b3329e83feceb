package consume

import "time"

// Taker is what is known of the consumer: whether it takes messages, how many at once, and how quickly.
type Taker struct {
	state TakerState
	room  int // messages that it seems to take at once
	ahead int // messages that are claimed for it in advance at most
	pace  pace
}

// TakerState is whether the consumer gets messages.
type TakerState int

const (
	Takes  TakerState = iota
	Stuck             // it takes none of those that are there, so no more are claimed
	Paused            // it gets none until a message that it nacked is back in its place: the order counts
	Gone              // it gets none any more: the subscription closes
)

// pause holds messages back until Redis has taken a nack. From then on no more are claimed in advance than it has handled since,
// or a handler that goes on failing would have hundreds claimed and given back each time.
func (t *Taker) pause() {
	if t.state != Gone {
		t.state = Paused
	}
	t.ahead = 0
}

// resume undoes from.
func (t *Taker) resume(from TakerState) {
	if t.state == from {
		t.state = Takes
	}
}

// pace is how long the consumer takes for a message.
type pace struct {
	mean float64 // seconds; 0: not known
}

// mostAhead is how many messages are claimed in advance at most.
const mostAhead = 768

func (p *pace) observe(d time.Duration) {
	if p.mean == 0 {
		p.mean = d.Seconds()
	} else {
		p.mean += (d.Seconds() - p.mean) / 8
	}
}

// prefetch is how many messages the consumer handles within longestStay, so many at a time.
func (p *pace) prefetch(inFlight int) int {
	if p.mean == 0 {
		return 0
	}
	return int(min(float64(inFlight)*longestStay.Seconds()/p.mean, mostAhead))
}
