package consume

// Supply is what is known about the group's ready messages.
type Supply int

const (
	Unknown Supply = iota // after a wake-up or a failed claim: the next plan claims, perhaps nothing
	Empty                 // the last claim left none, and the subscription is no waiter
	More                  // the last claim left some
	Waiting               // the last claim left none, and Redis wakes the subscription for the next
)
