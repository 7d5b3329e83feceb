// Package faults breaks everything around the project, one thing in each test, and checks the
// history of what the workers did. results.md has the result of each test.
package faults

import (
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
)

func TestMain(m *testing.M) { faulttest.Main(m) }
