package consume

import "time"

// Dates are the times by which the machine plans.
type Dates struct {
	poll     time.Time // a claim is due, whatever is known about the group
	extend   time.Time // leases are to be extended: at most a third of each is over then
	answered time.Time // the last exchange of the main lane ended
	sign     time.Time // the subscription is to show that it lives, with what goes anyhow; zero: at once
	watch    time.Time // a lease may end while Redis does not answer; zero: it has answered
	over     time.Time // in strict order, Redis may have leases until then that were lost here; zero: it has none
	cut      time.Time // calls to Redis end, if all settlements are answered by then; zero: never
}
