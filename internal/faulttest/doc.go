// Package faulttest is a harness for fault-injection tests. Workers run in separate processes and
// write what they do to a history outside Redis. A proxy simulates network faults. A checker finds
// violations of the project's promises in the history.
//
// A test creates a World, starts workers in it, injects a fault, ends it, and calls Verify. Verify
// drains the World and checks its history. The package's TestMain must call Main, because a worker
// is the test binary, started again.
//
//   - world.go, running.go, worker.go, publish.go and handle.go are the World and its workers.
//   - proxy.go, resp.go and wire.go are the network, and what goes over it.
//   - history.go has the events. sampler.go adds what is in Redis from time to time.
//   - rules.go lists the promises. checker.go, properties.go and files of single properties find
//     violations. verify.go and report.go end a test.
//   - tamper.go breaks scripts on purpose, so that tests of the checker can see it find them.
package faulttest
