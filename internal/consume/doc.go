// Package consume is the consumer engine: one Subscription for each Subscribe.
//
// A Machine decides what to say to Redis, what to hand out, and when. It is pure: it has no I/O,
// lock, goroutine, channel, timer, logger or clock. Events go in with the time at which they
// happen, and Effects come out. A Subscription is the shell around it: it calls the machine under a
// mutex, and after unlocking it talks to Redis, hands messages to the consumer and writes log
// lines.
//
// Files:
//
//	plan.go         what goes to Redis in the next round trip, and when: claims, acks, extensions
//	answer.go       what an answer of Redis changes
//	machine.go      the other events: messages taken, acked, nacked, expired; wake-ups; closing
//	leases.go       leases that run out, or are lost
//	held.go         the messages that the subscription holds, their order and their leases
//	lane.go, supply.go, suspect.go, taker.go, places.go, clock.go, dates.go, settlements.go, effects.go
//	                the parts of the machine's state
//	budget.go       the places that several subscriptions share
//	subscription.go the shell: goroutines, effects
//	closing.go      how the shell ends
//	exchange.go     the shell's round trips
//	handout.go      the shell's hand-over to the consumer
//	settle.go       acks and nacks, as the shell sees them; log lines
//	delivery.go     a message with the consumer, which is also the message's context
//
// # States
//
// Each part of the machine is in one of these states. The cause of a transition is in brackets.
//
//	Phase         Open -> Draining [Close] -> Left [Redis has answered the claim of nothing]
//	              -> Over [End]. Only Open takes messages and claims some. Hurry and Interrupt
//	              change no phase, because Redis may answer before or after them.
//	TalkState     Idle -> Asking [Plan returns an exchange] -> Idle [Answered]
//	              Idle -> Gathering [Plan keeps acks back, for others to join] -> Asking
//	LaneState     LaneIdle -> LaneAsked [a claim goes] -> LaneIdle [it was run, or refused]
//	              LaneAsked -> LaneUnanswered [no answer] -> LaneIdle [a repeat was run, or it is
//	              refused when a lease from the first run would be over]
//	              LaneIdle -> LaneBarred [second lane: its exchange failed] -> LaneIdle [the main
//	              lane's next exchange succeeds]
//	Supply        any -> Unknown [Woken, Asked, a claim failed]; Unknown -> Empty [a claim goes]
//	              -> Waiting, More or Empty [the claim's answer], unless it is Unknown again
//	SuspectState  any -> SuspectNext [a claim's answer: too much is held for the next message]
//	              any -> SuspectHeld or NoSuspect [any other answer: whether one is held]
//	TakerState    Takes -> Stuck [a message waits too long in the buffer, and the consumer cannot
//	              or does not take it] -> Takes [a message is handed over, or ends]
//	              Takes -> Paused [MaxInFlight 1: a nack that may be retried at once] -> Takes
//	              [Redis has taken the nack]; any -> Gone [TakerGone]
//	JudgingState  NothingOffered -> OfferExpires [Judge: in time] -> NothingOffered [Withdrawn]
//
// A message is in the buffer [its claim is answered], then in hand [Take], then one of the
// settlements [Acked, Nacked, Buried, Overran; from the buffer: a release], until Redis has taken
// that. At any time before, its lease can be lost; then it is released, in case Redis has it yet.
// In strict order nothing is claimed before that, or before Redis has the lease no more: see
// Dates.over.
//
// Derived, and not stored: whether an exchange failed (Dates.watch is set), whether Redis remembers
// a claim (Lane.remembered is not 0), whether a delivery has ended (Held has it no more), whether a
// subscription that closes hurries (Dates.cut is set). Whether a context has ended before its
// delivery is in the Delivery, which is the context: nacks after that count no delivery.
//
// Machine.telling counts the settlements that are on their way. No other state tells that, because
// an exchange leaves the machine when it is planned.
package consume
