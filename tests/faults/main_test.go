// Package faults breaks everything around the project, one thing in each test, and checks the
// history of what the workers did. results.md has the result of each test.
package faults

import (
	"os"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(moveVariable); text != "" {
		os.Exit(moveAndDie(text))
	}
	if text := os.Getenv(waitsVariable); text != "" {
		os.Exit(changeAndDie(text))
	}
	faulttest.Main(m)
}
