// Package faulttest is a harness for tests that make things fail: workers in processes of their own, each
// of which writes what it does to a history outside Redis, a network that can be made to fail, and a checker
// that finds in the history what must never happen.
//
// A test makes a World, starts workers in it, breaks what it is about, heals it, and calls Verify, which
// drains the World and checks its history. The package's TestMain calls Main, since a worker is the test's
// own binary, started again.
package faulttest
