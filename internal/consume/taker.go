package consume

import "time"

// Taker is what is known about the consumer: whether it takes messages, how many and how fast.
type Taker struct {
	state TakerState
	room  int     // messages that it seems to take at once
	ahead int     // most messages that may be claimed in advance for it
	pace  float64 // seconds that it takes for a message, on average; 0: not known
}

// TakerState is whether the consumer gets messages.
type TakerState int

const (
	Takes  TakerState = iota
	Stuck             // it takes none of the messages that are there, so no more are claimed
	Paused            // it gets none until the message that it nacked is back in its place
	Gone              // it gets none any more, because the subscription closes
)

// mostAhead is how many messages are claimed in advance at most.
const mostAhead = 768

// pause holds messages back until Redis has taken a nack, to keep the order. After that, no more
// messages are claimed in advance than the consumer has handled since. Otherwise a handler that
// keeps failing would have hundreds claimed and given back each time.
func (t *Taker) pause() {
	t.move(Takes, Paused)
	t.move(Stuck, Paused)
	t.ahead = 0
}

// move changes the state, if it is that one.
func (t *Taker) move(from, to TakerState) {
	if t.state == from {
		t.state = to
	}
}

// settled takes in that the consumer settled a message, in that time.
func (t *Taker) settled(took time.Duration) {
	t.ahead++
	if t.pace == 0 {
		t.pace = took.Seconds()
	} else {
		t.pace += (took.Seconds() - t.pace) / 8
	}
	t.move(Stuck, Takes)
}

// prefetch is how many messages to claim in advance: as many as the consumer handles within
// longestStay, of at most so many at once.
func (t *Taker) prefetch(atOnce float64) int {
	if t.pace == 0 {
		return 0
	}
	return min(int(min(min(float64(t.room), atOnce)*longestStay.Seconds()/t.pace, mostAhead)), t.ahead)
}
