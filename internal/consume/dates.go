package consume

import "time"

// Dates are when the machine has something to do without an event.
type Dates struct {
	poll     time.Time // a claim is due, whatever is known of the group
	extend   time.Time // leases are to be extended; a third of each is over then at most
	answered time.Time // the last exchange of the main lane ended; acks and claims that can wait do so from then
	watch    time.Time // leases may end while no answer comes; zero: an answer has come
}
