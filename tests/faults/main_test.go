// Package faults breaks everything around the project, one thing in each test, and checks the
// history of what the workers did. docs/reliability.md has what each test must show, and what it
// showed.
package faults

import (
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
)

func TestMain(m *testing.M) { faulttest.Main(m) }
