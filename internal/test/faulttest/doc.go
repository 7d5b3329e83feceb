// Package faulttest is a harness for fault-injection tests. Workers run in separate processes and
// write what they do to a history outside Redis. A proxy simulates network faults. A checker finds
// violations of the project's promises in the history.
//
// A test creates a World, starts workers in it, injects a fault, ends it, and calls Verify. Verify
// drains the World and checks its history. The package's TestMain must call Main, because a worker
// is the test binary, started again.
//
//   - world.go, running.go, worker.go, publish.go, keyed.go and handle.go are the World and its workers.
//   - proxy.go, resp.go and wire.go are the network, and what goes over it.
//   - history.go has the events. sampler.go adds what is in Redis from time to time.
//   - rules.go lists the promises. checker.go, properties.go and files of single properties find
//     violations. verify.go and report.go end a test.
//   - stalls.go measures how late the machine itself is.
//   - tamper.go breaks scripts on purpose, so that tests of the checker can see it find them.
//
// # The history
//
// Servers are real redis-server processes, and workers are processes of their own. A network
// between them can delay, cut, stay half open, and swallow the replies of chosen calls. A worker
// writes each publish, claim, handler, ack and nack to the history, before and after, with the
// server's time and the server's answer. The history also has looks at Redis that find a message
// gone, and outages of the server, the network and the workers.
//
// # The properties
//
//  1. Settlement. A message that was acknowledged is acked, cancelled or dead in every group. A
//     message that was refused is not there. A message is lost if it is not there to be cancelled,
//     unless an earlier try may have cancelled it. Acked means that Redis said so, under the
//     message's last lease.
//  2. NotEarly. Nothing is claimed before it is due.
//  3. Contents are unchanged, those of dead letters too.
//  4. Limit. No message is delivered more often than allowed, each delivery is counted once, and a
//     dead message is dead once and not too early. The counts of Redis, at each lease and in each
//     dead letter, equal the nacks and expired leases in the history.
//  5. AckHolds. Nothing is claimed after its ack, its cancellation or its death was confirmed, and
//     no handler begins after the ack.
//  6. OneLease. No message has two live leases in a group. A handler belongs to a lease of its
//     worker, and is its only one. Nothing is settled before its handler has ended, or its context
//     if it ran for too long. From two seconds after the end of the lease on, no handler begins, and
//     the context has ended. So handlers overlap only after an expiry.
//  7. StaleSettle. A settlement that comes after its lease is over changes nothing.
//  8. ReturnTime. A nacked message does not come back before its delay. It comes back a second
//     after it at the latest, and so does a message whose lease has ended. If a wake-up may be lost,
//     the bound is a poll later, 5 s. Outages do not count. Neither does the time when consumers are
//     busy, unless they get what was due later. Tests on a busy machine allow another second.
//  9. OneState. Each message is in one state of each group in every look, which is a transaction.
//  10. Isolation. The acts of a group do not affect another group.
//  11. OneCopy. A call that the client sends again makes one copy.
//  12. Clean. A drained server has no keys but those of docs/redis-keys.md.
//  13. Closing. Close returns in time, leaves no goroutine but in a call that the client has not
//     given up, and leaves the caller's client open.
//  14. Order. Messages with a partition key are for groups with one active subscriber, and one
//     message at a time. A message is first handled when all earlier ones of its key are acked or
//     dead, in whatever process. Earlier are those that were due earlier, and were published before
//     this one was due. Of two numbers of partitions that differ, a key may have two plain topics,
//     and between these there is no order. For one number it has one.
//  15. OneOwner. With SingleActive, no subscription has a lease while one of another is valid. All
//     leases of an owner end with the first that is not settled. The epoch grows with each owner,
//     and a handler sees that of its lease.
//
// Unit tests have a false history for each property. Tests of package faults break workers on
// purpose, and require that the checker catches each.
//
// # After a failover
//
// Replication is asynchronous, and only publishes wait for it. The tests hold the replicas up, note
// from when on, and kill the primary. For that time, and the topics on that primary, the properties
// are weaker, as for data that a server loses when it is killed:
//
//   - Settlement: an ack that was undone does not count. Without WaitReplicas, confirmed publishes of
//     that time may be lost. With it, each is acked or dead.
//   - AckHolds, StaleSettle: an ack, a nack or a death of that time may be undone.
//   - OneLease: the new primary may not know of a lease that began or was extended in that time.
//   - Limit, ReturnTime: not after a lease of that time, nor for the delay of its nack.
//   - Isolation, as others got the message: not for a lease of that time.
//   - OneOwner: not for a lease of that time. An owner whose successor came in that time may go on.
//
// All other properties hold. So do all properties in the time before and after, for topics on other
// nodes, and in a failover by CLUSTER FAILOVER, because the primary waits for the replica then.
//
// # Blind spots
//
//   - An ack without an answer. It counts as taken if no later lease is known and no look contradicts:
//     a look that saw the message last, after its lease began, must have seen it under that lease,
//     and no look may have missed it before the ack was sent. The figures count such acks, and how
//     many of them a look has seen under their lease. A message that is lost after such an ack,
//     between two looks, is not noticed.
//   - An ack of which Redis took some messages: not more may be gone than it says.
//   - Leases that nobody knows of, of claims without an answer. Until such a lease is over, the
//     message may be late, and its count has an upper and a lower bound only. This holds until 5.5 s
//     after its worker gave the claim up or died, and after an outage.
//   - A worker that is frozen, or about to end. Its handlers are not judged for that time and a
//     second more. A context that goes on when its worker is killed is not noticed.
//   - A nack without an answer: whether it or the end of the lease was counted.
//   - Time in which looks fail. They may fail for 30 s in a row, outages excepted.
//   - First deliveries have no bound in ReturnTime. A message that never comes is found by Settlement.
//   - Times of a server whose clock is set back.
//   - Data that a server has forgotten. Tests say from when until when, and for which topics.
//   - Operations of operators under load. They are tried by themselves.
package faulttest
