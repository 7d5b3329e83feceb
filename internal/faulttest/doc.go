// Package faulttest is a harness for fault-injection tests. Workers run in separate processes and
// write what they do to a history outside Redis. A proxy simulates network faults. A checker finds
// violations of the project's promises in the history.
//
// A test creates a World, starts workers in it, injects a fault, ends it, and calls Verify. Verify
// drains the World and checks its history. The package's TestMain must call Main, because a worker
// is the test binary, started again.
package faulttest
