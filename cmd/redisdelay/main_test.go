package main

import (
	"os"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	redistest.Main(m)
}
